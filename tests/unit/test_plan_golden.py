"""Plans of the shipped specs against numbers worked out by hand; each comment is the calculation."""

from __future__ import annotations

from pathlib import Path

import pytest

from mla_codegen.plan import Plan, make_plan
from mla_codegen.plan.model import Variant
from mla_codegen.spec import Spec
from mla_codegen.spec_loader import load_spec

SPECS = Path(__file__).parents[2] / "specs"
FP8 = ("dsv3_fp8_sm90", "dsv3_fp8_full_sm90")
BF16 = ("dsv3_bf16_sm90", "dsv3_bf16_full_sm90")
FP8_LIKE = (*FP8, "dsv3_fp8_lse_sm90", "dsv3_fp8_raw_sm90")
BF16_LIKE = (*BF16, "dsv3_bf16_lse_sm90")
BASE = (*FP8, *BF16)
OTHERS = ("dsv3_fp8_vt_sm90", "glm_bf16_sm90", "glm_fp8_sm90")
SHIPPED = (*FP8_LIKE, *BF16_LIKE, *OTHERS)

# DeepSeek: nope 128, rope 64, v 128. An fp8 row of nope or V is 128 bytes, a bf16 row of them 256, a bf16 row
# of rope 128. Row of Q or K: fp8 128 + 128 = 256, bf16 256 + 128 = 384.


def shipped(name: str) -> Plan:
    return make_plan(load_spec(SPECS / f"{name}.yaml"))


def variant(name: str) -> Variant:
    (only,) = shipped(name).variants
    return only


def test_all_shipped_specs_of_this_architecture_are_judged_here() -> None:
    assert {path.stem for path in SPECS.glob("*_sm90.yaml")} == set(SHIPPED)


# Name, elements, offset, bytes, alignment.
FP8_FIELDS = [
    ("q_smem", 49152, 0, 49152, 1024),  # 192 rows x 256
    ("kv_smem", 73728, 49152, 73728, 1024),  # 3 stages x 96 keys x 256
    ("v_smem", 24576, 122880, 24576, 1024),  # 49152 + 73728; 2 stages x 96 keys x 128
    ("v_raw_smem", 24576, 147456, 24576, 1024),  # 122880 + 24576; 2 stages x 96 keys x 128
    ("q_scale_smem", 192, 172032, 768, 16),  # 147456 + 24576; 192 rows x 4
    ("k_scale_smem", 288, 172800, 1152, 16),  # 172032 + 768; 3 stages x 96 keys x 4
    ("o_master_smem", 49152, 173952, 49152, 16),  # 172800 + 1152; 192 rows x 128 columns x 2
    ("work_smem", 12, 223104, 48, 16),  # 173952 + 49152; 12 x 4
    ("mbar_base", 20, 223152, 160, 8),  # (3 + 3 + 3 + 3 + 2 + 2 + 2 + 2) x 8
]
FP8_USED = 223312  # 223152 + 160
FP8_SIZEOF = 224256  # 223312 / 1024 = 218.08 -> 219 x 1024

BF16_FIELDS = [
    ("q_smem", 49152, 0, 49152, 1024),  # 128 rows x 384
    ("kv_smem", 98304, 49152, 98304, 1024),  # 2 stages x 128 keys x 384
    ("v_smem", 65536, 147456, 65536, 1024),  # 49152 + 98304; 2 stages x 128 keys x 256
    ("work_smem", 12, 212992, 48, 16),  # 147456 + 65536
    ("mbar_base", 13, 213040, 104, 8),  # (2 + 2 + 2 + 2 + 2 + 2 + 1) x 8
]
BF16_USED = 213144  # 213040 + 104
BF16_SIZEOF = 214016  # 213144 / 1024 = 208.15 -> 209 x 1024

VT_FIELDS = [
    ("q_smem", 49152, 0, 49152, 1024),  # 192 rows x 256
    ("kv_smem", 73728, 49152, 73728, 1024),  # 3 stages x 96 keys x 256
    ("v_smem", 36864, 122880, 36864, 1024),  # 49152 + 73728; 3 stages x 96 keys x 128
    ("q_scale_smem", 192, 159744, 768, 16),  # 122880 + 36864; 192 rows x 4
    ("k_scale_smem", 288, 160512, 1152, 16),  # 159744 + 768; 3 stages x 96 keys x 4
    ("o_master_smem", 49152, 161664, 49152, 16),  # 160512 + 1152; 192 rows x 128 columns x 2
    ("work_smem", 12, 210816, 48, 16),  # 161664 + 49152
    ("mbar_base", 19, 210864, 152, 8),  # (3 + 3 + 3 + 3 + 3 + 3 + 1) x 8
]
# GLM: nope 192, rope 64, v 256. Row of Q or K: fp8 192 + 128 = 320, bf16 384 + 128 = 512; of V 256 and 512.
GLM_BF16_FIELDS = [
    ("q_smem", 65536, 0, 65536, 1024),  # 128 rows x 512
    ("kv_smem", 81920, 65536, 81920, 1024),  # 2 stages x 80 keys x 512
    ("v_smem", 81920, 147456, 81920, 1024),  # 65536 + 81920; 2 stages x 80 keys x 512
    ("work_smem", 12, 229376, 48, 16),  # 147456 + 81920
    ("mbar_base", 13, 229424, 104, 8),  # (2 + 2 + 2 + 2 + 2 + 2 + 1) x 8
]
GLM_FP8_FIELDS = [
    ("q_smem", 40960, 0, 40960, 1024),  # 128 rows x 320
    ("kv_smem", 61440, 40960, 61440, 1024),  # 3 stages x 64 keys x 320
    ("v_smem", 49152, 102400, 49152, 1024),  # 40960 + 61440; 3 stages x 64 keys x 256
    ("q_scale_smem", 128, 151552, 512, 16),  # 102400 + 49152; 128 rows x 4
    ("k_scale_smem", 192, 152064, 768, 16),  # 151552 + 512; 3 stages x 64 keys x 4
    ("o_master_smem", 65536, 152832, 65536, 16),  # 152064 + 768; 128 rows x 256 columns x 2
    ("work_smem", 12, 218368, 48, 16),  # 152832 + 65536
    ("mbar_base", 17, 218416, 136, 8),  # (2 + 2 + 3 + 3 + 3 + 3 + 1) x 8
]


@pytest.mark.parametrize(
    ("names", "fields", "used", "sizeof"),
    [
        (FP8_LIKE, FP8_FIELDS, FP8_USED, FP8_SIZEOF),
        (BF16_LIKE, BF16_FIELDS, BF16_USED, BF16_SIZEOF),
        (("dsv3_fp8_vt_sm90",), VT_FIELDS, 211016, 211968),  # 210864 + 152; 207 x 1024
        (("glm_bf16_sm90",), GLM_BF16_FIELDS, 229528, 230400),  # 229424 + 104; 225 x 1024
        (("glm_fp8_sm90",), GLM_FP8_FIELDS, 218552, 219136),  # 218416 + 136; 214 x 1024
    ],
    ids=["fp8", "bf16", "transposed", "glm_bf16", "glm_fp8"],
)
def test_shared_memory(names: tuple[str, ...], fields: list[tuple], used: int, sizeof: int) -> None:
    for name in names:
        smem = variant(name).smem
        found = [
            (item.name, item.count, item.offset_bytes, item.size_bytes, item.align_bytes)
            for item in smem.fields
        ]
        assert found == fields
        assert (smem.used_bytes, smem.sizeof_bytes, smem.align_bytes) == (used, sizeof, 1024)
        assert smem.limit_bytes == 232448  # 227 KiB
        assert smem.last_field == "mbar_base"
        assert variant(name).launch.smem_bytes == sizeof


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            FP8,
            {
                "q_nope_bytes": 24576,  # BM 192 x N 128 x 1
                "q_rope_bytes": 24576,  # BM 192 x R 64 x 2
                "q_bytes": 49152,  # their sum
                "num_kv_stages": 3,
                "kv_nope_bytes": 36864,  # BN 96 x N 128 x 1 x 3; V has a ring of its own
                "kv_rope_bytes": 36864,  # R 64 x BN 96 x 2 x 3
                "kv_bytes": 73728,  # their sum
                "q_scale_bytes": 768,  # BM 192 x 4
                "k_scale_bytes": 384,  # BN 96 x 4, a multiple of 16 already
            },
        ),
        (
            BF16,
            {
                "q_nope_bytes": 32768,  # 128 x 128 x 2
                "q_rope_bytes": 16384,  # 128 x 64 x 2
                "q_bytes": 49152,
                "num_kv_stages": 2,
                "kv_nope_bytes": 65536,  # 128 x 128 x 2 x 2
                "kv_rope_bytes": 32768,  # 64 x 128 x 2 x 2
                "kv_bytes": 98304,
            },
        ),
    ],
    ids=["fp8", "bf16"],
)
def test_constants_of_the_seed(names: tuple[str, ...], expected: dict[str, int]) -> None:
    for name in names:
        assert {item.name: item.value for item in variant(name).smem.constants} == expected


# Name, stages, first index, arrivals, bytes, who arrives, who waits.
FP8_MBARRIERS = [
    # One lane expects the bytes, and one arrives when the warp has written the scales: 2.
    # One for each consumer: 64 x 128 + 64 x 64 x 2 = 16384; 4 warps release it
    ("q_full", 3, 0, 2, 16384, "load", "consumer"),
    ("q_empty", 3, 3, 4, 0, "consumer", "load"),
    # 96 x 128 + 96 x 64 x 2 = 24576
    ("k_full", 3, 6, 2, 24576, "load", "consumer"),
    # 3 consumers x 4 warps = 12
    ("k_empty", 3, 9, 12, 0, "consumer", "load"),
    # 96 x 128 = 12288
    ("v_raw_full", 2, 12, 1, 12288, "load", "transpose"),
    # 3 warps transpose
    ("v_raw_empty", 2, 14, 3, 0, "transpose", "load"),
    ("v_full", 2, 16, 3, 0, "transpose", "consumer"),
    ("v_empty", 2, 18, 12, 0, "consumer", "transpose"),
]
BF16_MBARRIERS = [
    # 64 x 128 x 2 + 64 x 64 x 2 = 24576
    ("q_full", 2, 0, 1, 24576, "load", "consumer"),
    ("q_empty", 2, 2, 4, 0, "consumer", "load and tail"),
    # 128 x 128 x 2 + 128 x 64 x 2 = 49152
    ("k_full", 2, 4, 1, 49152, "load", "consumer"),
    # 2 consumers x 4 warps = 8
    ("k_empty", 2, 6, 8, 0, "consumer", "load"),
    # 128 x 128 x 2 = 32768
    ("v_full", 2, 8, 1, 32768, "load", "consumer and tail"),
    ("v_empty", 2, 10, 8, 0, "consumer", "load"),
    ("v_tail_cleared", 1, 12, 1, 0, "tail", "consumer"),
]


@pytest.mark.parametrize(
    ("names", "expected", "total"),
    [(FP8, FP8_MBARRIERS, 20), (BF16, BF16_MBARRIERS, 13)],
    ids=["fp8", "bf16"],
)
def test_mbarriers(names: tuple[str, ...], expected: list[tuple], total: int) -> None:
    for name in names:
        found = [
            (
                item.name,
                item.stages,
                item.first_index,
                item.arrivals,
                item.tx_bytes,
                item.arrives,
                item.waits,
            )
            for item in variant(name).mbarriers
        ]
        assert found == expected
        assert variant(name).num_mbars == total


@pytest.mark.parametrize(("names", "consumers"), [(FP8, 3), (BF16, 2)], ids=["fp8", "bf16"])
def test_named_barriers(names: tuple[str, ...], consumers: int) -> None:
    # Ids from 1, since 0 is __syncthreads; the one who waits and the one who passes on: 2 x 128 threads.
    for name in names:
        found = [(item.name, item.id, item.threads) for item in variant(name).named_barriers]
        assert found == [(f"turn_{i}", 1 + i, 256) for i in range(consumers)]


# Name, first warp, warps, registers.
FP8_ROLES = [("load", 0, 1, 32), ("transpose", 1, 3, 32), ("consumer", 4, 12, 160)]
BF16_ROLES = [("load", 0, 1, 24), ("tail", 1, 1, 24), ("idle", 2, 2, 24), ("consumer", 4, 8, 240)]


@pytest.mark.parametrize(
    ("names", "expected", "threads", "cap"),
    [
        # (1 + 3 warpgroups) x 128 = 512; 65536 / 512 = 128. 4 x 128 - 32 = 480 = 3 x 160.
        (FP8, FP8_ROLES, 512, 128),
        # (1 + 2) x 128 = 384; 65536 / 384 = 170.7 -> 168 in steps of 8. 3 x 168 - 24 = 480 = 2 x 240.
        (BF16, BF16_ROLES, 384, 168),
    ],
    ids=["fp8", "bf16"],
)
def test_roles_and_registers(names: tuple[str, ...], expected: list[tuple], threads: int, cap: int) -> None:
    for name in names:
        plan = variant(name)
        found = [(item.name, item.first_warp, item.num_warps, item.registers) for item in plan.roles]
        assert found == expected
        assert (plan.launch.threads, plan.launch.launch_registers) == (threads, cap)


# Name, type, box, swizzle, bytes of one issue, issues.
FP8_MAPS = [
    ("q_nope_map", "e4m3", (128, 64, 1), 128, 8192, 1),  # 128 x 64 rows of a consumer x 1 byte
    ("q_rope_map", "bf16", (64, 64, 1), 128, 8192, 1),  # 64 x 64 x 2
    ("k_nope_map", "e4m3", (128, 96, 1), 128, 12288, 1),  # 128 x 96
    ("k_rope_map", "bf16", (64, 96, 1), 128, 12288, 1),  # 64 x 96 x 2
    ("v_map", "e4m3", (128, 96, 1), 128, 12288, 1),
]
BF16_MAPS = [
    ("q_nope_map", "bf16", (64, 64, 1), 128, 8192, 2),  # 64 x 64 rows of a consumer x 2
    ("q_rope_map", "bf16", (64, 64, 1), 128, 8192, 1),
    ("k_nope_map", "bf16", (64, 128, 1), 128, 16384, 2),  # 64 x 128 x 2; 128 elements are 2 x 128 bytes
    ("k_rope_map", "bf16", (64, 128, 1), 128, 16384, 1),
    ("v_map", "bf16", (64, 128, 1), 128, 16384, 2),
]


@pytest.mark.parametrize(("names", "expected"), [(FP8, FP8_MAPS), (BF16, BF16_MAPS)], ids=["fp8", "bf16"])
def test_tensor_maps(names: tuple[str, ...], expected: list[tuple]) -> None:
    for name in names:
        found = [
            (item.name, item.dtype, item.box, item.swizzle_bytes, item.issue_bytes, item.issues)
            for item in variant(name).tensor_maps
        ]
        assert found == expected


def literals(name: str) -> dict[str, str]:
    """Every constant; a name that comes twice would show as a lost one."""
    rows = [(item.name, item.literal) for group in variant(name).constants for item in group.constants]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


COMMON = {
    "kOvDepth": "128",
    "kRowsPerConsumer": "64",  # M of wgmma
    "kLoadWarpEnd": "1",
    "kTurnThreads": "256",
    "kLoadArrivals": "1",
    "kRopeChunks": "1",  # 64 x 2 bytes are one 128-byte chunk
    "kRopeChunkElems": "64",
    "kNopeWidth": "128",  # 128 one-byte elements, or 64 two-byte ones of 128
    "kRopeWidth": "128",
    "kNopeSwizzleMode": "1",  # 128 bytes
    "kRopeSwizzleMode": "1",
    "kVWidth": "128",
    "kNopeConsumerBytes": "8192",  # 64 x 128
    "kRopeConsumerBytes": "8192",
    "kOutputRegs": "64",  # 64 x 128 / 128 threads
    "kKStepBytes": "32",
    "kSmallestFactor": "0x1.0000000000000p-100f",
    "kGridYLimit": "65535",
    "kRunGroup": "8",
    "kQEmptyArrivals": "4",  # the warps of one consumer
}
FP8_CONSTANTS = COMMON | {
    "kBlockM": "192",
    "kBlockN": "96",
    "kNumThreads": "512",
    "kNumConsumers": "3",
    "kTransposeWarpEnd": "4",
    "kProducerRegisters": "32",
    "kConsumerRegisters": "160",
    "kScaledLoadArrivals": "2",
    "kConsumerArrivals": "12",
    "kTransposeWarps": "3",
    "kKStages": "3",
    "kVStages": "2",
    "kVRawStages": "2",
    "kNopeChunks": "1",  # 128 bytes
    "kNopeChunkElems": "128",
    "kVChunks": "1",
    "kVChunkElems": "128",
    "kQNopeChunkBytes": "24576",  # 192 x 128
    "kQRopeChunkBytes": "24576",
    "kKNopeChunkBytes": "12288",  # 96 x 128
    "kKRopeChunkBytes": "12288",
    "kVChunkBytes": "12288",
    "kVChunkGroups": "4",  # 128 / 32
    "kVRawStageBytes": "12288",
    "kKStageBytes": "24576",  # 96 x 256
    "kKRopeOffset": "12288",  # 96 x 128
    "kVStageBytes": "12288",  # 96 x 128
    "kQTxBytes": "16384",
    "kKTxBytes": "24576",
    "kVTxBytes": "12288",
    "kKScaleStageBytes": "384",  # 96 x 4
    "kVColumnGroups": "4",  # 128 / 32
    "kTransposePieces": "24",  # 96 / 16 x 4
    "kScoreRegs": "48",  # 64 x 96 / 128
    "kProbRegs": "12",  # 48 bytes in 4-byte registers
    "kLiftLog2": "0x1.4000000000000p+2f",  # 5
    "kLazySumLimit": "448.0f",  # the largest e4m3: 1.75 x 2^8
    "kFlushBlocks": "6",  # 576 keys / 96
    "kMasterVectorBytes": "16",  # 8 bf16
    "kMasterVectorStride": "2048",  # 128 threads x 16
    "kMasterGroupBytes": "16384",  # 64 rows x 128 columns x 2
}
NOT_BF16 = ("kLazySumGoal", "kLiftSteps", "kFlushBlocks")
NOT_BF16 += ("kMasterVectorBytes", "kMasterVectorStride", "kMasterGroupBytes")
BF16_CONSTANTS = COMMON | {
    "kBlockM": "128",
    "kBlockN": "128",
    "kNumThreads": "384",
    "kNumConsumers": "2",
    "kTailWarpEnd": "2",
    "kIdleWarpEnd": "4",
    "kProducerRegisters": "24",
    "kConsumerRegisters": "240",
    "kConsumerArrivals": "8",
    "kTailArrivals": "1",
    "kKStages": "2",
    "kVStages": "2",
    "kNopeChunks": "2",  # 256 bytes
    "kNopeChunkElems": "64",
    "kVChunks": "2",
    "kVChunkElems": "64",
    "kQNopeChunkBytes": "16384",  # 128 x 128
    "kQRopeChunkBytes": "16384",
    "kKNopeChunkBytes": "16384",
    "kKRopeChunkBytes": "16384",
    "kVChunkBytes": "16384",
    "kKStageBytes": "49152",  # 128 x 384
    "kKRopeOffset": "32768",  # 128 x 256
    "kVStageBytes": "32768",  # 128 x 256
    "kQTxBytes": "24576",
    "kKTxBytes": "49152",
    "kVTxBytes": "32768",
    "kScoreRegs": "64",  # 64 x 128 / 128
    "kProbRegs": "32",  # 64 x 2 bytes in 4-byte registers
    "kPvSteps": "8",  # 128 keys / 16
    "kPvStepBytes": "2048",  # 16 keys x 128
    "kVRowUnits": "8",  # 128 / 16
    "kVSwizzleMode": "1",
    "kLiftLog2": "0x0.0p+0f",
    "kLazySumLimit": "256.0f",  # 2^8
}


@pytest.mark.parametrize(
    ("names", "expected"), [(FP8, FP8_CONSTANTS), (BF16, BF16_CONSTANTS)], ids=["fp8", "bf16"]
)
def test_constants(names: tuple[str, ...], expected: dict[str, str]) -> None:
    for name in names:
        found = literals(name)
        assert {key: found.get(key) for key in expected} == expected


@pytest.mark.parametrize("name", BF16)
def test_16_bit_plans_have_nothing_of_the_lift_and_the_master(name: str) -> None:
    assert not literals(name).keys() & set(NOT_BF16)
    assert "o_master_smem" not in {item.name for item in variant(name).smem.fields}


# What `auto` became beside the sizes.
FP8_NUMBERS = {"dtypes.p": "e4m3", "softmax.variant": "lazy", "accumulation.flush_blocks": "6"}
BF16_NUMBERS = {"dtypes.p": "bf16", "softmax.variant": "lazy"}
NUMBER_SECTIONS = ("dtypes", "softmax", "accumulation")


@pytest.mark.parametrize(
    ("names", "expected"), [(FP8, FP8_NUMBERS), (BF16, BF16_NUMBERS)], ids=["fp8", "bf16"]
)
def test_choices_about_numbers(names: tuple[str, ...], expected: dict[str, str]) -> None:
    for name in names:
        choices = {item.field: item for item in shipped(name).choices}
        found = {key: item.value for key, item in choices.items() if key.split(".")[0] in NUMBER_SECTIONS}
        assert found == expected
        assert all(choices[key].rule != "as the spec says" for key in expected)


# Consumers; bytes of one warpgroup, which are 64 rows x 128 columns x 2; bytes of all of them.
@pytest.mark.parametrize(("consumers", "total"), [(2, 32768), (3, 49152)])
def test_every_vector_of_the_master_has_a_place_of_its_own(consumers: int, total: int) -> None:
    data = load_spec(SPECS / "dsv3_fp8_sm90.yaml").to_mapping() | {"schedule": {"consumers": consumers}}
    (plan,) = make_plan(Spec.from_mapping(data)).variants
    (field,) = [item for item in plan.smem.fields if item.name == "o_master_smem"]
    assert (field.size_bytes, field.align_bytes) == (total, 16)
    constants = {
        item.name: int(item.literal)
        for group in plan.constants
        for item in group.constants
        if item.name.startswith("kMaster") or item.name == "kOutputRegs"
    }
    assert constants == {
        "kMasterGroupBytes": 16384,
        "kMasterVectorBytes": 16,
        "kMasterVectorStride": 2048,
        "kOutputRegs": 64,
    }
    # 64 fp32 of O are 64 bf16 in the master: 8 in each 16 bytes, so 8 vectors a thread.
    vectors = constants["kOutputRegs"] // 8
    assert vectors == 8
    addresses = [
        consumer * constants["kMasterGroupBytes"]
        + thread * constants["kMasterVectorBytes"]
        + i * constants["kMasterVectorStride"]
        for consumer in range(consumers)
        for thread in range(128)
        for i in range(vectors)
    ]
    # Each 16-byte place of the field once, and none beyond it.
    assert sorted(addresses) == list(range(0, total, 16))
    # A quarter of a warp reads 8 neighbouring vectors: 128 bytes, which are all 32 banks once.
    assert (field.offset_bytes % 16, field.offset_bytes % 128) == (0, 0)


@pytest.mark.parametrize(
    ("name", "out_bytes", "units"),
    [
        ("dsv3_fp8_sm90", "2", "16"),  # 128 x 2 bytes in stores of 16
        ("dsv3_bf16_sm90", "2", "16"),
        ("dsv3_fp8_full_sm90", "4", "64"),  # 128 x 4 bytes in stores of 8
        ("dsv3_bf16_full_sm90", "4", "64"),
    ],
)
def test_output(name: str, out_bytes: str, units: str) -> None:
    found = literals(name)
    assert (found["kOutBytes"], found["kOutRowUnits"]) == (out_bytes, units)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Q*K of nope and rope are N = 96 wide, P*V is N = 128 wide; accumulators are N / 2.
        ("dsv3_fp8_sm90", [("wgmma_e4m3_ss", 96), ("wgmma_bf16_ss", 96), ("wgmma_e4m3_rs", 128)]),
        # Nope and rope of bf16 are the same shape.
        ("dsv3_bf16_sm90", [("wgmma_bf16_ss", 128), ("wgmma_bf16_rs_mn", 128)]),
    ],
)
def test_mma_atoms(name: str, expected: list[tuple[str, int]]) -> None:
    atoms = shipped(name).mma_atoms
    assert [(item.function, item.n) for item in atoms] == expected
    assert all(item.accumulators == item.n // 2 for item in atoms)


# First token, width, offset, swizzle mode, first step, steps. Offset: 128 columns x first token; mode 1, 2, 3
# for 128, 64, 32 bytes; a step of P*V is 32 tokens.
CHUNKS = {
    64: [(0, 64, 0, 2, 0, 2)],
    96: [(0, 64, 0, 2, 0, 2), (64, 32, 8192, 3, 2, 1)],  # 64 + 32
    128: [(0, 128, 0, 1, 0, 4)],
    160: [(0, 128, 0, 1, 0, 4), (128, 32, 16384, 3, 4, 1)],  # 128 + 32
}


@pytest.mark.parametrize("block_n", CHUNKS)
def test_transposed_v_is_cut_into_swizzle_widths(block_n: int) -> None:
    data = load_spec(SPECS / "dsv3_fp8_sm90.yaml").to_mapping()
    data |= {"tile": {"block_n": block_n}, "schedule": {"consumers": 2}}
    (plan,) = make_plan(Spec.from_mapping(data)).variants
    found = [
        (
            item.first_token,
            item.width_bytes,
            item.offset_bytes,
            item.swizzle_mode,
            item.first_step,
            item.steps,
        )
        for item in plan.v_transposed_chunks
    ]
    assert found == CHUNKS[block_n]


@pytest.mark.parametrize("name", BF16)
def test_bf16_has_no_transposed_v(name: str) -> None:
    assert variant(name).v_transposed_chunks == ()


@pytest.mark.parametrize("name", BASE)
def test_features_are_those_of_the_spec(name: str) -> None:
    features, fp8 = variant(name).features, name in FP8
    assert features.carries_scales is fp8
    assert (features.scales_rows, features.scales_columns) == (fp8, fp8)  # a scale per token of q and k
    assert variant(name).placed_scales == ()  # the first scale of the call is the first of every head
    assert (features.folds_k_scale, features.scales_output, features.scales_p) == (False, False, False)
    assert (features.has_rope, features.raw_rope, features.scales_scores) == (True, False, fp8)
    assert (features.q_dense, features.kv_dense, features.counts_sequences) == (False, False, False)
    assert (features.whole_output_groups, features.half_output_group) == (True, False)
    assert features.groups_heads is False
    assert features.writes_lse is False
    assert features.f32_output is ("full" in name)
    assert features.transposes_v is fp8
    assert features.mixed_qk is fp8
    assert features.clears_v_tail is not fp8
    assert features.lazy_softmax is True
    assert (features.lowers_lift, features.flushes_output) == (fp8, fp8)
    assert (features.rereads_tile, features.renews_q) == (False, False)
    assert features.causal is ("full" not in name)
    assert features.debug is False
    step = "_softmax_step_lazy.cu.j2" if fp8 else "_softmax_step_online.cu.j2"
    assert variant(name).partials.softmax_step == step
    order = "turns" if fp8 else "ping_pong_pairs"
    assert variant(name).partials.kv_step == f"_kv_step_{order}_sm90.cu.j2"


@pytest.mark.parametrize("name", BASE)
def test_launch_and_head(name: str) -> None:
    plan = shipped(name)
    (only,) = plan.variants
    assert (plan.arch, plan.plan_schema) == ("sm_90a", 1)
    assert (only.entry, only.namespace) == (name, f"mla::{name}")
    # 512 threads: 3 consumers of 64 rows; 384 threads: 2.
    expected = (192, 96) if name in FP8 else (128, 128)
    assert (only.launch.block_m, only.launch.block_n) == expected
    assert (only.launch.run_heads, only.launch.longest_run, only.launch.sms) == (None, 4, 132)
