// As find_tile, for one row of tiles, with fewer divisions.
bool find_strip(out Tile t) {
    uint across = (columns - 1u) / TILE_COLUMNS + 1u;
    t.index = group_index();
    t.part = 0u;
    if (SPLIT) {
        t.part = t.index / (across * batches);
        t.index -= t.part * (across * batches);
    }
    t.batch = batches > 1u ? t.index / across : 0u;
    t.row = 0u;
    t.column = (t.index - t.batch * across) * TILE_COLUMNS;
    t.at = batch_at(t.batch);
    t.begin = SPLIT ? t.part * part_k : 0u;
    t.end = SPLIT ? min(t.begin + part_k, K) : K;
    return t.part < parts && t.batch < batches && find_group(t);
}
