// A tile of keys, from the key ``first``, whose keys and values take turns. No subgroup leaves anything out: a
// branch around the products would cost registers, and those that others wait for have no less to do.
        barrier();  // the keys are there, the previous values have been read
        if (EDGES && CAUSAL) {
            // Scores begin at 0, or absent. Differences of columns and rows tell which, of all elements alike.
            int place = int(lane % 4u * 2u) - int(lane / 4u);
            [[unroll]] for (int f = 0; f < DOWN; ++f) {
                int most_ahead =
                    int(past + (tile * ROWS + own_row + uint(f) * 16u) % queries - first) - place;
                [[unroll]] for (int j = 0; j < KEY_TILES; ++j)
                    [[unroll]] for (int i = 0; i < 8; ++i) {
                        int ahead = j * 16 + i % 2 + i / 2 % 2 * 8 - i / 4 * 8 - most_ahead;
                        bool kept = ahead <= 0;
                        if (WINDOW != 0u) kept = kept && ahead > -int(WINDOW);
                        s[f * KEY_TILES + j][i] = kept ? 0.0 : ABSENT;
                    }
            }
        } else {
            [[unroll]] for (int n = 0; n < DOWN * KEY_TILES; ++n) s[n] = Sums(0.0);
        }
        [[unroll]] for (int d = 0; d < HEAD_TILES; ++d) {
            RowFragment a[DOWN];
            [[unroll]] for (int f = 0; f < DOWN; ++f) {
                uvec4 words = local_x[zero + f * HEAD_TILES + d];
                [[unroll]] for (int i = 0; i < 8; ++i)
                    a[f][i] = unpackFloat2x16(words[i / 4 + i / 2 % 2 * 2])[i % 2];
            }
            [[unroll]] for (int j = 0; j < KEY_TILES; ++j) {
                ColumnFragment z;
                coopMatLoad(z, s_tile, uint(j) * 16u * K_PITCH + uint(d) * 2u, K_PITCH,
                            gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (int f = 0; f < DOWN; ++f)
                    s[f * KEY_TILES + j] = coopMatMulAdd(a[f], z, s[f * KEY_TILES + j]);
            }
        }
        STORE(v, V, VALUE_SIZE, V_AT)
        if (EDGES && RAGGED) {
            int last = int(end - 1u - first) - int(lane % 4u * 2u);
            [[unroll]] for (int n = 0; n < DOWN * KEY_TILES; ++n)
                [[unroll]] for (int i = 0; i < 8; ++i)
                    if (n % KEY_TILES * 16 + i % 2 + i / 2 % 2 * 8 > last) s[n][i] = ABSENT;
        }

        float factor = scale * LOG2_E;
        [[unroll]] for (int f = 0; f < DOWN; ++f) {
            float largest[2] = float[2](ABSENT, ABSENT);
            [[unroll]] for (int i = 0; i < 8; ++i)
                [[unroll]] for (int j = 0; j < KEY_TILES; ++j)
                    largest[i / 4] = max(largest[i / 4], s[f * KEY_TILES + j][i]);
            bool grown = false;
            [[unroll]] for (int l = 0; l < 2; ++l) {
                largest[l] *= factor;
                grown = grown || largest[l] > most[f * 2 + l] + ROOM;
            }
            if (subgroupOr(uint(grown)) != 0u) {
                float shrink[2];
                [[unroll]] for (int l = 0; l < 2; ++l) {
                    float now = max(most[f * 2 + l], row_max(largest[l]) - LIFT);
                    shrink[l] = exp2(most[f * 2 + l] - now);
                    most[f * 2 + l] = now;
                    sum[f * 2 + l] *= shrink[l];
                }
                [[unroll]] for (int n = 0; n < VALUE_TILES; ++n)
                    [[unroll]] for (int i = 0; i < 8; ++i) o[f * VALUE_TILES + n][i] *= shrink[i / 4];
            }
        }
        barrier();  // the values are there, the keys have been read
        LOAD(k, K, HEAD_SIZE, k_base, k_by[2], first + KEYS)
        LOAD(v, V, VALUE_SIZE, v_base, v_by[2], first + KEYS)
        // Powers of some keys are computed while matrix units multiply those before.
        [[unroll]] for (int j = 0; j < KEY_TILES; ++j) {
            RowFragment p[DOWN];
            [[unroll]] for (int f = 0; f < DOWN; ++f)
                [[unroll]] for (int i = 0; i < 8; ++i) {
                    float power = exp2(fma(s[f * KEY_TILES + j][i], factor, -most[f * 2 + i / 4]));
                    sum[f * 2 + i / 4] += power;
                    p[f][i] = float16_t(power);
                }
            [[unroll]] for (int n = 0; n < VALUE_TILES; ++n) {
                ColumnFragment z;
                coopMatLoad(z, s_tile, V_AT + uint(j) * 16u * V_PITCH + uint(n) * 2u, V_PITCH,
                            gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (int f = 0; f < DOWN; ++f)
                    o[f * VALUE_TILES + n] = coopMatMulAdd(p[f], z, o[f * VALUE_TILES + n]);
            }
        }
        STORE(k, K, HEAD_SIZE, 0u)
