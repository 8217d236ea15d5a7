"""The mappings: which sentences make up a sample."""

import sys
import time
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.megatron_rules import same, slow_mapping

pytest_plugins = ("tests.megatron_fixtures",)

shared = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def collections(draw):
    counts = draw(st.lists(st.integers(0, 9), min_size=1, max_size=14))
    documents = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    total = int(documents[-1])
    sizes = np.array(draw(st.lists(st.integers(0, 60), min_size=total, max_size=total)), np.int32)
    for place in draw(st.lists(st.integers(0, max(total - 1, 0)), max_size=2)):
        sizes[place : place + 1] = draw(st.sampled_from([512, 513, 2**31 - 1]))
    return documents, sizes


epochs = st.integers(1, 4)
most = st.sampled_from([0, 1, 7, 10**6])
lengths = st.integers(2, 200)
seeds = st.integers(1, 2**31 - 1)
probabilities = st.one_of(st.sampled_from([0.0, 0.1, 0.4, 0.6, 1.0, 1e-8]), st.floats(1e-6, 1))


@shared
@given(collections(), epochs, most, lengths, probabilities, seeds, st.integers(-1, 4))
def test_a_mapping_is_the_peers_bit_for_bit(helpers, peer, collection, epochs, most, length, short, seed, fewest):
    arguments = (*collection, epochs, most, length, short, seed, False, fewest)
    with warnings.catch_warnings(action="ignore"):
        same([helpers.build_mapping(*arguments)], [peer.build_mapping(*arguments)])


@shared
@given(collections(), epochs, most, lengths, seeds, st.booleans())
def test_a_blocks_mapping_is_the_peers_bit_for_bit(helpers, peer, collection, epochs, most, length, seed, single):
    titles = np.arange(len(collection[0]) - 1, dtype=np.int32) * 3
    arguments = (*collection, titles, epochs, most, length, seed, False, single)
    with warnings.catch_warnings(action="ignore"):
        same([helpers.build_blocks_mapping(*arguments)], [peer.build_blocks_mapping(*arguments)])


@settings(shared, max_examples=60)
@given(collections(), epochs, most, lengths, st.sampled_from([0, 1, 2, 10]), seeds, st.integers(1, 3))
def test_both_mappings_follow_the_rule(helpers, collection, epochs, most, length, ratio, seed, fewest):
    short = 1 / ratio if ratio else 0
    titles = np.full(len(collection[0]) - 1, 3, np.int32)
    with warnings.catch_warnings(action="ignore"):
        rows = helpers.build_mapping(*collection, epochs, most, length, short, seed, False, fewest)
        blocks = helpers.build_blocks_mapping(*collection, titles, epochs, most, length, seed, False, fewest == 1)
    expected = slow_mapping(*collection, epochs, most, length, ratio, seed, fewest)
    assert rows.tolist() == [list(row) for row in expected]
    expected = slow_mapping(*collection, epochs, most, length, 0, seed, 1 if fewest == 1 else 2, titles)
    assert blocks.tolist() == [list(row) for row in expected]


@pytest.mark.parametrize("sentences", [2**32 - 1, 2**32])
def test_the_dtype_follows_the_number_of_sentences(helpers, peer, sentences):
    sizes = np.broadcast_to(np.int32(5), (sentences,))
    documents = np.array([0, 3, sentences - 4, sentences], np.int64)[[0, 1]], np.array([sentences - 4, sentences])
    for pair in documents:
        arguments = (pair, sizes, 2, 99, 10, 0.5, 3, False, 2)
        same([helpers.build_mapping(*arguments)], [peer.build_mapping(*arguments)])
        arguments = (pair, sizes, [1], 2, 99, 10, 3, False, True)
        same([helpers.build_blocks_mapping(*arguments)], [peer.build_blocks_mapping(*arguments)])


def test_a_long_shuffle_is_the_peers(helpers, peer):
    documents = np.arange(0, 200_001, 2)
    sizes = np.full(200_000, 9, np.int32)
    arguments = (documents, sizes, 3, 10**6, 100, 0.1, 1234, False, 2)
    same([helpers.build_mapping(*arguments)], [peer.build_mapping(*arguments)])


@pytest.mark.parametrize("documents", [[0], [0, 0, 0], [0, 1, 2]])
def test_a_mapping_without_a_qualifying_document_is_empty_at_once_with_a_warning(helpers, documents):
    begin = time.monotonic()
    with pytest.warns(UserWarning, match="no document qualifies"):
        rows = helpers.build_mapping(documents, [10, 20], 2**31 - 1, 10**9, 40, 0.1, 7, False, 2)
    assert (rows.dtype, rows.shape) == (np.uint32, (0, 3))
    with pytest.warns(UserWarning, match="no document qualifies"):
        rows = helpers.build_blocks_mapping(documents, [10, 20], [1, 1], 2**31 - 1, 10**9, 40, 7, False, False)
    assert (rows.dtype, rows.shape) == (np.uint32, (0, 4))
    with pytest.warns(UserWarning, match="no document qualifies"):
        helpers.build_mapping([0, 0], [10, 20], 2**31 - 1, 10**9, 40, 0.1, 7, False, 0)
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize("documents", [[2**63 - 1, -(2**63)], [-(2**63), -(2**63)], [2**62, 0, -(2**62) - 1]])
@pytest.mark.parametrize("fewest", [-(2**31), 0, 1, 2])
def test_documents_that_end_before_they_begin_have_no_sentences(helpers, documents, fewest, capfd):
    """However far before, and whatever there may be at these places."""
    documents = np.array(documents, np.int64)
    sizes, titles = np.array([10, 20, 30], np.int32), np.zeros(len(documents) - 1, np.int32)
    with pytest.warns(UserWarning, match="no document qualifies"):
        assert helpers.build_mapping(documents, sizes, 2, 10, 10, 0.1, 1, True, fewest).shape == (0, 3)
    with pytest.warns(UserWarning, match="no document qualifies"):
        assert helpers.build_blocks_mapping(documents, sizes, titles, 2, 10, 10, 1, True, fewest == 1).shape == (0, 4)
    assert "number of documents:" in capfd.readouterr().out


def test_a_mapping_belongs_to_its_caller(helpers):
    rows = helpers.build_mapping([0, 3], [10, 20, 30], 1, 10, 40, 0, 7, False, 2)
    rows[0, 0] = 9
    assert rows.flags.c_contiguous
    assert rows[0].tolist() == [9, 3, 40]


MAPPING = {
    "docs": [0, 3],
    "sizes": [10, 20, 30],
    "num_epochs": 1,
    "max_num_samples": 10,
    "max_seq_length": 40,
    "short_seq_prob": 0.1,
    "seed": 7,
    "verbose": False,
    "min_num_sent": 2,
}
BLOCKS = {
    "docs": [0, 3],
    "sizes": [10, 20, 30],
    "titles_sizes": [1],
    "num_epochs": 1,
    "max_num_samples": 10,
    "max_seq_length": 40,
    "seed": 7,
    "verbose": False,
    "use_one_sent_blocks": False,
}
COMMON = [
    ({"docs": []}, ValueError, "docs is empty"),
    ({"docs": [0, 4]}, IndexError, r"docs\[0\] and the next are 0 and 4"),
    ({"docs": [-1, 3]}, IndexError, r"docs\[0\] and the next are -1 and 3"),
    ({"docs": [0, 2**63 - 1]}, IndexError, r"docs\[0\] and the next are 0 and 9223372036854775807"),
    ({"docs": [-(2**63), 2**63 - 1]}, IndexError, r"docs\[0\] and the next are -9223372036854775808 and"),
    ({"docs": [0, 2.5]}, ValueError, "docs has dtype float64"),
    ({"sizes": [10, -20, 30]}, ValueError, "sizes has a negative element in document 0"),
    ({"sizes": [10, 2**32, 30]}, ValueError, "sizes has dtype int64"),
    ({"num_epochs": 0}, ValueError, "num_epochs is 0"),
    ({"max_num_samples": -1}, ValueError, "max_num_samples is -1"),
    ({"max_seq_length": 0}, ValueError, "max_seq_length is 0"),
    ({"max_seq_length": 1}, ValueError, "max_seq_length is 1"),
    ({"seed": 0}, ValueError, "seed is 0"),
    ({"seed": -3}, ValueError, "seed is -3"),
]


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        *COMMON,
        ({"short_seq_prob": 1.5}, ValueError, "short_seq_prob is 1.5"),
        ({"short_seq_prob": -0.1}, ValueError, "short_seq_prob is -0.1"),
        ({"short_seq_prob": float("nan")}, ValueError, "short_seq_prob is nan"),
        ({"short_seq_prob": 1e-12}, ValueError, "short_seq_prob is 1e-12"),
        ({"short_seq_prob": "x"}, TypeError, "short_seq_prob is a str"),
        ({"min_num_sent": 2**31}, ValueError, "min_num_sent is 2147483648"),
    ],
)
def test_a_mapping_refuses_what_makes_no_sense_by_name(helpers, change, error, named):
    """Case 88."""
    with pytest.raises(error, match=f"^{named}"):
        helpers.build_mapping(*(MAPPING | change).values())


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        *COMMON,
        ({"titles_sizes": []}, ValueError, "titles_sizes has 0 elements for 1 documents"),
        ({"titles_sizes": [-1]}, ValueError, r"titles_sizes\[0\] is negative"),
    ],
)
def test_a_blocks_mapping_refuses_what_makes_no_sense_by_name(helpers, change, error, named):
    """Case 88."""
    with pytest.raises(error, match=f"^{named}"):
        helpers.build_blocks_mapping(*(BLOCKS | change).values())


@pytest.mark.parametrize("most", [2, 100])
@pytest.mark.parametrize("name", ["build_mapping", "build_blocks_mapping"])
def test_verbose_tells_what_the_peer_tells(helpers, peer, capfd, name, most):
    values = MAPPING if name == "build_mapping" else BLOCKS
    documents = {"docs": [0, 3, 5, 6, 6], "sizes": [10, 20, 30, 5, 600, 7], "num_epochs": 3}
    arguments = values | documents | {"verbose": True, "max_num_samples": most}
    if "titles_sizes" in arguments:
        arguments["titles_sizes"] = [1, 2, 3, 4]
    getattr(helpers, name)(*arguments.values())
    sys.stdout.flush()
    ours = capfd.readouterr().out
    getattr(peer, name)(*arguments.values())
    assert ours == capfd.readouterr().out != ""
