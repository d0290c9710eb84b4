// A tile of keys, from the key ``first``. Single scores matter only with EDGES.
        barrier();  // the previous tile has been read
        STORE(k, K, HEAD_SIZE, 0u)
        STORE(v, V, VALUE_SIZE, V_AT)
        if (EDGES) { ADDED_BY_KEY(first) }
        barrier();
        // The next tile loads while this one is used.
        LOAD(k, K, HEAD_SIZE, k_base, k_by[2], first + (AHEAD ? 2u * KEYS : KEYS))
        LOAD(v, V, VALUE_SIZE, v_base, v_by[2], first + KEYS)

        bool takes = !IDLE || works;
        if (EDGES && (CAUSAL || RAGGED)) takes = takes && first + own_key < own_end;
        if (takes) {
            if (!AHEAD)
                [[unroll]] for (int j = 0; j < KEY_TILES; ++j) { SCORES(s, j) }

            // Single scores matter only at edges.
            float factor = scale * LOG2_E;
            if (EDGES
                && (BY_KEY || ((CAUSAL || RAGGED) && first + own_key + OWN_KEYS > min(end, own_all_see))
                    || (WINDOW != 0u && first + own_key < own_all_see_since))) {
                Sums numbers;
                if (!SAME_PLACES)
                    coopMatLoad(numbers, s_numbers, 0u, 4u, gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int f = 0; f < DOWN; ++f)
                    [[unroll]] for (int j = 0; j < KEY_TILES; ++j)
                        [[unroll]] for (int i = 0; i < numbers.length(); ++i) {
                            uint line = lane / 4u + uint(LINE(i)) * 8u;
                            uint column = lane % 4u * 2u + uint(i) % 2u + uint(i) / 2u % 2u * 8u;
                            if (!SAME_PLACES) {
                                line = uint(numbers[i]) / 16u;
                                column = uint(numbers[i]) % 16u;
                            }
                            uint row = own_row + uint(f) * 16u + line;
                            uint key = own_key + uint(j) * 16u + column;
                            float score = s[f * KEY_TILES + j][i];
                            score = SOFT_CAP == 0u ? fma(score, factor, s_by_key[key])
                                                   : fma(capped(score * scale), LOG2_E, s_by_key[key]);
                            if (BY_ROW)
                                score += bounded(added(s_rows[row], true, min(first + key, keys - 1u)));
                            if (CAUSAL && first + key >= s_limits[row]) score = ABSENT;
                            if (WINDOW != 0u && first + key + WINDOW < s_limits[row]) score = ABSENT;
                            s[f * KEY_TILES + j][i] = score;
                        }
                factor = 1.0;
            }

            [[unroll]] for (int f = 0; f < DOWN; ++f) {
                float largest[LINES];
                [[unroll]] for (int l = 0; l < LINES; ++l) largest[l] = ABSENT;
                [[unroll]] for (int i = 0; i < s[0].length(); ++i)
                    [[unroll]] for (int j = 0; j < KEY_TILES; ++j)
                        largest[LINE(i)] = max(largest[LINE(i)], s[f * KEY_TILES + j][i]);
                bool grown = false;
                [[unroll]] for (int l = 0; l < LINES; ++l) {
                    largest[l] *= factor;
                    grown = grown || largest[l] > most[f * LINES + l] + ROOM;
                }
                if (subgroupOr(uint(grown)) != 0u) {
                    float now[LINES], shrink[LINES];
                    if (SAME_PLACES) {
                        [[unroll]] for (int l = 0; l < LINES; ++l)
                            now[l] = max(most[f * LINES + l], row_max(largest[l]) - LIFT);
                    } else {
                        Sums strips;
                        [[unroll]] for (int i = 0; i < strips.length(); ++i) strips[i] = largest[LINE(i)];
                        uint at = own + lane / 2u * STRIP_PITCH;
                        coopMatStore(strips, s_tile, own, STRIP_PITCH,
                                     gl_CooperativeMatrixLayoutRowMajor);
                        share();
                        vec4 four =
                            max(max(strip(at), strip(at + 1u)), max(strip(at + 2u), strip(at + 3u)));
                        own_most[f] =
                            max(own_most[f], max(max(four.x, four.y), max(four.z, four.w)) - LIFT);
                        share();
                        s_tile[at + lane % 2u * 2u] = s_tile[at + lane % 2u * 2u + 1u] =
                            uvec4(floatBitsToUint(own_most[f]));
                        share();
                        coopMatLoad(strips, s_tile, own, STRIP_PITCH,
                                    gl_CooperativeMatrixLayoutRowMajor);
                        share();
                        [[unroll]] for (int i = 0; i < strips.length(); ++i) now[LINE(i)] = strips[i];
                    }
                    [[unroll]] for (int l = 0; l < LINES; ++l) {
                        shrink[l] = exp2(most[f * LINES + l] - now[l]);
                        most[f * LINES + l] = now[l];
                        sum[f * LINES + l] *= shrink[l];
                    }
                    [[unroll]] for (int n = 0; n < VALUE_TILES; ++n)
                        [[unroll]] for (int i = 0; i < o[0].length(); ++i)
                            o[f * VALUE_TILES + n][i] *= shrink[LINE(i)];
                }
            }
            RowFragment p[SAME_PLACES ? DOWN * KEY_TILES : 1];
            [[unroll]] for (int j = 0; j < KEY_TILES; ++j) {
                if (AHEAD) { SCORES(t, j) }
                [[unroll]] for (int f = 0; f < DOWN; ++f) {
                    [[unroll]] for (int i = 0; i < s[0].length(); ++i) {
                        float power =
                            exp2(fma(s[f * KEY_TILES + j][i], factor, -most[f * LINES + LINE(i)]));
                        sum[f * LINES + LINE(i)] += power;
                        if (SAME_PLACES) p[f * KEY_TILES + j][i] = float16_t(power);
                        else s[f * KEY_TILES + j][i] = power;
                    }
                    if (!SAME_PLACES)
                        coopMatStore(Halves(s[f * KEY_TILES + j]), s_tile,
                                     powers + uint(f) * 16u * P_PITCH + uint(j) * 2u, P_PITCH,
                                     gl_CooperativeMatrixLayoutRowMajor);
                }
            }
            if (!SAME_PLACES) share();

            [[unroll]] for (int j = 0; j < KEY_TILES; ++j) {
                RowFragment own_p[DOWN];
                [[unroll]] for (int f = 0; f < DOWN; ++f) {
                    if (SAME_PLACES)
                        own_p[f] = p[f * KEY_TILES + j];
                    else
                        coopMatLoad(own_p[f], s_tile, powers + uint(f) * 16u * P_PITCH + uint(j) * 2u,
                                    P_PITCH, gl_CooperativeMatrixLayoutRowMajor);
                }
                [[unroll]] for (int n = 0; n < VALUE_TILES; ++n) {
                    ColumnFragment z;
                    coopMatLoad(z, s_tile, V_AT + (own_key + uint(j) * 16u) * V_PITCH + uint(n) * 2u,
                                V_PITCH, gl_CooperativeMatrixLayoutRowMajor);
                    [[unroll]] for (int f = 0; f < DOWN; ++f)
                        o[f * VALUE_TILES + n] = coopMatMulAdd(own_p[f], z, o[f * VALUE_TILES + n]);
                }
            }
            if (!SAME_PLACES) share();
            if (AHEAD)
                [[unroll]] for (int n = 0; n < DOWN * KEY_TILES; ++n) s[n] = t[n];
        }
