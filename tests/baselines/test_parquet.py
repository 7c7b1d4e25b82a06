"""Texts in Parquet files, as pyarrow 26 writes them."""

from __future__ import annotations

import base64

import pytest

from adapter_bert.baselines import parquet

TEXTS = [*(f"word{number}" for number in range(12)), "café", "the", "the", *(f"word{number}" for number in range(5))]
# pyarrow.parquet.write_table(pyarrow.table({"index": TEXTS}), …, compression=…, store_schema=False,
# write_statistics=False)
SNAPPY = """
UEFSMRUEFfwBFYwBTBUcFQASAAB+IAUAAAB3b3JkMBEJADERCQAyEQkAMxEJADQRCQA1EQkANhEJADcRCQA4EQkEOQYNWgQxMBUKBVwsY2Fmw6kDAAAA
dGhlFQAVKBUsLBUoFRAVBhUGHAAAABRMAgAAACgBBAcQMlR2mLrcDSFDAAAVBBksNQAYBnNjaGVtYRUCABUMJQIYBWluZGV4JQBMHAAAABYoGRwZHCYA
HBUMGTUABhAZGAVpbmRleBUCFigW6gIW/gEmtAEmCCksFQQVABUCABUAFRAVAgA8FsQBGQYZJgAoAAAAFuoCFigmCBb+AQAoIHBhcnF1ZXQtY3BwLWFy
cm93IHZlcnNpb24gMjYuMC4xGRwcAAAAmgAAAFBBUjE="""
PLAIN = """
UEFSMRUEFfwBFfwBTBUcFQASAAAFAAAAd29yZDAFAAAAd29yZDEFAAAAd29yZDIFAAAAd29yZDMFAAAAd29yZDQFAAAAd29yZDUFAAAAd29yZDYFAAAA
d29yZDcFAAAAd29yZDgFAAAAd29yZDkGAAAAd29yZDEwBgAAAHdvcmQxMQUAAABjYWbDqQMAAAB0aGUVABUoFSgsFSgVEBUGFQYcAAAAAgAAACgBBAcQ
MlR2mLrcDSFDAAAVBBksNQAYBnNjaGVtYRUCABUMJQIYBWluZGV4JQBMHAAAABYoGRwZHCYAHBUMGTUABhAZGAVpbmRleBUAFigW6gIW6gImpAImCCks
FQQVABUCABUAFRAVAgA8FsQBGQYZJgAoAAAAFuoCFigmCBbqAgAoIHBhcnF1ZXQtY3BwLWFycm93IHZlcnNpb24gMjYuMC4xGRwcAAAAmgAAAFBBUjE="""


@pytest.mark.parametrize("text", [SNAPPY, PLAIN])
def test_texts_are_read_in_order(text):
    assert parquet.read_strings(base64.b64decode(text)) == TEXTS


def test_copies_in_snappy_may_overlap_their_source():
    # 10 bytes: the literal "ab", then a copy of 8 bytes from 2 bytes before.
    assert parquet.unsnappy(b"\x0a" + b"\x04ab" + bytes([(8 - 4) << 2 | 1, 2])) == b"ab" * 5


@pytest.mark.parametrize(
    "data",
    [b"", b"PAR1" * 3, base64.b64decode(PLAIN)[:-20] + b"PAR1", b"PAR1" + b"\xff" * 100 + base64.b64decode(PLAIN)[-8:]],
)
def test_damaged_files_raise_errors(data):
    with pytest.raises((ValueError, IndexError, KeyError)):
        parquet.read_strings(data)


def test_damaged_snappy_data_is_noticed():
    for data in (b"\x0a\x04ab", b"\x0a" + bytes([1, 9]), b"\xff\xff\xff\xff\x0f"):
        with pytest.raises((ValueError, IndexError)):
            parquet.unsnappy(data)
