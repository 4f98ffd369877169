"""kernel_structs: each struct is as large as the compiled library has it."""

import ctypes

from chairlift.model.kernels.cpu import kernel_structs, library
from support_native import need_native


def test_structs_are_as_large_as_the_library_has_them() -> None:
    need_native()
    kinds = (
        kernel_structs.Weight, kernel_structs.StepGroup, kernel_structs.StepCache, kernel_structs.Step,
        kernel_structs.TruncationStruct, kernel_structs.LogitsRow, kernel_structs.Plan, kernel_structs.LMHeadCall,
        kernel_structs.RouterSettings, kernel_structs.ExpertsCall,
        kernel_structs.StepState, kernel_structs.StateSaveStruct, kernel_structs.RecurrenceShape,
    )  # fmt: skip
    sizes = (ctypes.c_size_t * len(kinds))()
    library.load().sizes(sizes)
    assert list(sizes) == [ctypes.sizeof(kind) for kind in kinds]
