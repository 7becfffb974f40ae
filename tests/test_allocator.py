"""The advice to the allocator is taken where it can be, and harms nothing elsewhere."""

import subprocess
import sys

from captioner.allocator import keep_freed_memory


def test_advice_is_taken_on_glibc_only(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed_memory() is False


def test_a_process_computes_on_after_it():
    code = (
        "from captioner.allocator import keep_freed_memory; import sys, platform;"
        "took = keep_freed_memory(); import torch;"
        "assert torch.ones(1000, 1000).sum() == 1e6;"
        "assert took or platform.libc_ver()[0] != 'glibc'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
