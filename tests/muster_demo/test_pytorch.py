"""Which PyTorch is installed where: never gigabytes of CUDA on a machine without a GPU, if a CPU build can be had."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster_demo import pytorch

CPU = f"torch=={pytorch.VERSION}+cpu"
PLAIN = f"torch=={pytorch.VERSION}"


@pytest.fixture
def pip(monkeypatch) -> Callable[..., list[list[str]]]:
    """Makes pip succeed for those command lines that ``offers`` accepts; returns the list of what was tried."""

    def prepare(offers: Callable[[list[str]], bool], gpu: bool = False) -> list[list[str]]:
        tried: list[list[str]] = []

        def succeeds(command: list[str], *, quiet: bool = False) -> bool:
            tried.append(command)
            return offers(command)

        monkeypatch.setattr(pytorch, "_succeeds", succeeds)
        monkeypatch.setattr(pytorch, "has_nvidia_gpu", lambda: gpu)
        return tried

    return prepare


def test_a_cpu_build_that_the_own_indexes_offer_is_taken_without_asking_elsewhere(pip) -> None:
    tried = pip(lambda command: CPU in command)
    assert pytorch.install()
    assert len(tried) == 1
    assert "--extra-index-url" not in tried[0]


@pytest.mark.parametrize(("named", "index"), [(None, pytorch.CPU_INDEX), ("https://mirror/cpu", "https://mirror/cpu")])
def test_then_pytorchs_own_index_or_the_one_named(pip, monkeypatch, named, index) -> None:
    if named:
        monkeypatch.setenv("TORCH_INDEX", named)
    else:
        monkeypatch.delenv("TORCH_INDEX", raising=False)
    tried = pip(lambda command: "--extra-index-url" in command)
    assert pytorch.install()
    assert tried[-1][-3:] == ["--extra-index-url", index, CPU]


def test_only_then_the_cuda_build_and_it_says_so_first(pip, capsys) -> None:
    tried = pip(lambda command: command[-1] == PLAIN)
    assert pytorch.install()
    assert [command[-1] for command in tried] == [CPU, CPU, PLAIN]
    assert "several GB" in capsys.readouterr().out.replace("\n", " ")


def test_a_machine_with_a_gpu_gets_the_cuda_build_at_once(pip) -> None:
    tried = pip(lambda command: True, gpu=True)
    assert pytorch.install()
    assert [command[-1] for command in tried] == [PLAIN]


def test_where_none_can_be_had_one_sentence_and_a_status(pip, monkeypatch, capsys) -> None:
    pip(lambda command: False)
    monkeypatch.setattr(pytorch, "can_import", lambda _python: False)
    assert pytorch.main(["--here"]) == 1
    assert "cannot be installed from here" in capsys.readouterr().err.replace("\n", " ")


def test_an_interpreter_without_torch_or_none_at_all_will_not_do(tmp_path) -> None:
    assert not pytorch.can_import(str(tmp_path / "python3"))
    without = tmp_path / "without"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o755)
    assert not pytorch.can_import(str(without))
