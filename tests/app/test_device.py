import pytest
import torch

from app import device
from app.errors import DeviceError, UsageError


def test_the_cpu_is_always_a_choice():
    assert device.pick_device("cpu") == "cpu"
    assert device.pick_device("auto") in ("cpu", "cuda", "mps")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_missing_gpu_is_an_error_with_advice():
    with pytest.raises(DeviceError, match="--device cpu"):
        device.pick_device("cuda")


def test_an_nvidia_card_beside_a_torch_without_cuda_is_named_as_such(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    with pytest.raises(DeviceError, match="built without CUDA"):
        device.pick_device("cuda")


def test_a_device_that_is_none_is_an_error():
    with pytest.raises(DeviceError, match="No device 'gpu'"):
        device.pick_device("gpu")


@pytest.mark.parametrize(("gain", "chosen"), [(0.6, "float32"), (1.29, "float32"), (2.5, "bfloat16")])
def test_a_cpu_uses_bfloat16_only_where_it_is_clearly_faster(monkeypatch, gain, chosen):
    monkeypatch.setattr(device, "speed_of_bfloat16", lambda: gain)
    assert device.pick_dtype("auto", "cpu") == chosen


def test_a_dtype_asked_for_is_taken_by_either_name():
    assert device.pick_dtype("bf16", "cpu") == device.pick_dtype("bfloat16", "cpu") == "bfloat16"
    with pytest.raises(UsageError, match="No dtype 'int3'"):
        device.pick_dtype("int3", "cpu")
