"""Many processes, one node: one compile, everyone imports."""

from __future__ import annotations


def test_one_process_compiles_and_the_others_import_what_it_made(start, tiny, compiler, load_program):
    """Case 12, in one round."""
    source = tiny()
    children = [start(load_program, "tiny", source) for _ in range(8)]
    results = [child.wait(60) for child in children]
    assert [result.status for result in results] == [0] * 8, [result.err for result in results]
    assert [result.json["sum"] for result in results] == [5] * 8
    assert sorted(result.json["role"] for result in results).count("built") == 1
    assert compiler.compiles == 1
    assert [result.err for result in results] == [""] * 8
