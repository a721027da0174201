"""The Spec: defaults, limits, rules between fields, digest, JSON Schema; and the tables it rests on."""

from __future__ import annotations

import json
import pickle
import typing
from types import MappingProxyType

import ml_dtypes
import numpy
import pydantic
import pytest

from mla_codegen.arch import ARCHS
from mla_codegen.digest import canonical_json, sha256, short
from mla_codegen.dtypes import DTYPES, numpy_dtype
from mla_codegen.errors import Diagnostic, SpecError
from mla_codegen.spec import ChunkMask, Origin, Paged, PrefixLmMask, Spec, WindowMask, json_schema
from mla_codegen.spec_faults import section_of
from mla_codegen.spec_sections import Arch

DEFAULTS: dict[str, object] = {
    "spec_version": 1,
    "name": "k",
    "arch": "sm_90a",
    "dtypes": {
        "qkv": "e4m3",
        "p": "auto",
        "rope_gmem": "bf16",
        "rope_mma": "bf16",
        "scale": None,
        "out": "bf16",
    },
    "dims": {"nope": 128, "rope": 64, "v": 128},
    "heads": {"q": "any", "group": 1},
    "scales": {"q": "none", "k": "none", "v": "none", "rope": None, "rope_k": "none"},
    "mask": "causal",
    "layout": {"q": "ragged", "kv": "ragged", "rope": None, "v": "rows"},
    "tile": {"block_m": "auto", "block_n": "auto"},
    "pipeline": {
        "kv_stages": "auto",
        "qk_stages": 1,
        "pv_stages": "auto",
        "v_stages": "auto",
        "v_raw_stages": "auto",
        "kv_ring": "auto",
    },
    "accumulation": {"flush_blocks": "auto"},
    "softmax": {
        "lse": "none",
        "lse_layout": "head_token",
        "variant": "auto",
        "sink": False,
        "softcap": None,
    },
    "smem": {"layout": "auto"},
    "schedule": {
        "consumers": "auto",
        "order": "auto",
        "transpose_warps": "auto",
        "persistent": "auto",
        "longest_first": "auto",
    },
}


def mapping(**sections: object) -> dict[str, object]:
    """The smallest mapping of a spec, with sections replaced."""
    least: dict[str, object] = {
        "name": "k",
        "arch": "sm_90a",
        "dtypes": {"qkv": "e4m3"},
        "dims": {"nope": 128, "rope": 64, "v": 128},
    }
    return {**least, **sections}


def spec(**sections: object) -> Spec:
    return Spec.from_mapping(mapping(**sections))


def faults(**sections: object) -> list[tuple[str | None, str]]:
    """Field and code of every fault of a mapping."""
    with pytest.raises(SpecError) as caught:
        spec(**sections)
    for fault in caught.value.diagnostics:
        assert fault.help
        assert "allowed" in fault.message
        assert "\n" not in fault.message
    return [(fault.field, fault.code) for fault in caught.value.diagnostics]


def test_defaults_are_filled_in_declared_order() -> None:
    found = spec().to_mapping()
    assert found == DEFAULTS
    assert json.dumps(found) == json.dumps(DEFAULTS)
    assert Spec.from_mapping(found) == spec()


@pytest.mark.parametrize(
    ("dtypes", "gmem", "mma"),
    [
        ({"qkv": "e4m3"}, "bf16", "bf16"),
        ({"qkv": "bf16"}, "bf16", "bf16"),
        ({"qkv": "f16"}, "f16", "f16"),
        ({"qkv": "e4m3", "rope_gmem": "e4m3"}, "e4m3", "e4m3"),
        ({"qkv": "e4m3", "rope_gmem": "f16"}, "f16", "f16"),
        ({"qkv": "bf16", "rope_gmem": "e4m3", "rope_mma": "bf16"}, "e4m3", "bf16"),
    ],
)
def test_rope_dtypes_follow_qkv(dtypes: dict[str, object], gmem: str, mma: str) -> None:
    found = spec(dtypes=dtypes).dtypes
    assert (found.rope_gmem, found.rope_mma) == (gmem, mma)


@pytest.mark.parametrize(
    ("scales", "dtype"),
    [({}, None), ({"v": "token"}, "f32"), ({"q": "head", "rope": "raw"}, "f32")],
)
def test_scale_dtype_follows_scales(scales: dict[str, object], dtype: str | None) -> None:
    assert spec(scales=scales).dtypes.scale == dtype


def test_rope_convention_that_cannot_matter_is_read_as_null() -> None:
    assert spec(scales={"v": "token", "rope": "raw"}).scales.rope is None
    rope_free = {"nope": 128, "rope": 0, "v": 128}
    assert spec(dims=rope_free, scales={"k": "head", "rope": "prescaled"}).scales.rope is None
    assert spec(scales={"v": "token", "rope": "raw"}) == spec(scales={"v": "token"})
    assert spec(scales={"q": "token", "rope": "raw"}).scales.rope == "raw"


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"scales": {"q": "token"}}, ("scales.rope", "missing-field")),
        ({"scales": {"k": "token", "rope": None}}, ("scales.rope", "missing-field")),
        ({"scales": {"k": "head", "rope": "prescaled"}}, ("scales.k", "prescaled-per-head")),
        ({"scales": {"k": "token_head", "rope": "prescaled"}}, ("scales.k", "prescaled-per-head")),
        ({"dtypes": {"qkv": "bf16"}, "scales": {"q": "tensor"}}, ("scales.q", "needless-scale")),
        ({"dtypes": {"qkv": "f16"}, "scales": {"v": "token"}}, ("scales.v", "needless-scale")),
        ({"scales": {"rope_k": "token"}}, ("scales.rope_k", "rope-k-scale")),
        (
            {"dtypes": {"qkv": "e4m3", "scale": None}, "scales": {"v": "token"}},
            ("dtypes.scale", "scale-dtype"),
        ),
        ({"dtypes": {"qkv": "e4m3", "scale": "f32"}}, ("dtypes.scale", "scale-dtype")),
        ({"dtypes": {"qkv": "e4m3", "rope_mma": "f16"}}, ("dtypes.rope_mma", "rope-dtypes")),
        (
            {"dtypes": {"qkv": "e4m3", "rope_gmem": "e4m3", "rope_mma": "f16"}},
            ("dtypes.rope_mma", "rope-dtypes"),
        ),
        ({"heads": {"q": 10, "group": 4}}, ("heads.q", "heads-group")),
        ({"layout": {"v": "transposed"}, "dtypes": {"qkv": "bf16"}}, ("layout.v", "transposed-v")),
        ({"layout": {"v": "transposed"}, "arch": "sm_100a"}, ("layout.v", "transposed-v")),
        (
            {"layout": {"rope": {"paged": 64}}, "dims": {"nope": 128, "rope": 0, "v": 128}},
            ("layout.rope", "needless-rope"),
        ),
        ({"name": "class"}, ("name", "bad-value")),
        ({"name": "int"}, ("name", "bad-value")),
    ],
)
def test_rules_between_fields(sections: dict[str, object], expected: tuple[str, str]) -> None:
    assert faults(**sections) == [expected]
    with pytest.raises(pydantic.ValidationError):
        Spec(**mapping(**sections))


@pytest.mark.parametrize(
    "sections",
    [
        {"scales": {"q": "token", "k": "none", "rope": "prescaled"}},
        {"scales": {"q": "token_head", "k": "tensor", "v": "token_head", "rope": "prescaled"}},
        {"scales": {"q": "token", "k": "token_head", "rope": "raw"}},
        {
            "scales": {"rope_k": "token"},
            "dtypes": {"qkv": "bf16", "rope_gmem": "e4m3", "rope_mma": "bf16"},
            "arch": "sm_100a",
        },
        {"heads": {"q": 12, "group": 4}},
        {"heads": {"group": 4}},
        {"layout": {"v": "transposed"}},
        {"layout": {"rope": {"paged": 64}}},
        {"dims": {"nope": 192, "rope": 0, "v": 256}},
        {"mask": {"window": [-1, 0]}},
    ],
)
def test_legal_combinations(sections: dict[str, object]) -> None:
    assert spec(**sections).to_mapping()["name"] == "k"


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"name": "Upper"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "a" * 201}, "name"),
        ({"spec_version": 2}, "spec_version"),
        ({"spec_version": True}, "spec_version"),
        ({"spec_version": 1.0}, "spec_version"),
        ({"arch": "sm_90"}, "arch"),
        ({"dims": {"nope": 100, "rope": 64, "v": 128}}, "dims.nope"),
        ({"dims": {"nope": 0, "rope": 64, "v": 128}}, "dims.nope"),
        ({"dims": {"nope": 128, "rope": -16, "v": 128}}, "dims.rope"),
        ({"dims": {"nope": 128, "rope": 64, "v": 272}}, "dims.v"),
        ({"dims": {"nope": 128, "rope": 64, "v": 128.0}}, "dims.v"),
        ({"dims": {"nope": 128, "rope": 64, "v": True}}, "dims.v"),
        ({"dims": {"nope": 128, "rope": 64, "v": "128"}}, "dims.v"),
        ({"heads": {"q": 0}}, "heads.q"),
        ({"heads": {"group": 10**5000}}, "heads.group"),
        ({"mask": {"window": [1]}}, "mask"),
        ({"mask": {"window": [-2, 0]}}, "mask"),
        ({"mask": {"window": [1, True]}}, "mask"),
        ({"mask": {"chunk": 0}}, "mask"),
        ({"mask": {"prefix_lm": False}}, "mask"),
        ({"mask": {"prefix_lm": 1}}, "mask"),
        ({"mask": {"window": [1, 1], "chunk": 3}}, "mask"),
        ({"layout": {"kv": {"paged": 0}}}, "layout.kv"),
        ({"layout": {"q": {"paged": 64}}}, "layout.q"),
        ({"softmax": {"softcap": 0}}, "softmax.softcap"),
        ({"softmax": {"softcap": float("inf")}}, "softmax.softcap"),
        ({"softmax": {"softcap": True}}, "softmax.softcap"),
        ({"softmax": {"sink": 1}}, "softmax.sink"),
        ({"schedule": {"persistent": "yes"}}, "schedule.persistent"),
        ({"tile": None}, "tile"),
        ({"tile": []}, "tile"),
    ],
)
def test_limits_of_single_fields(sections: dict[str, object], field: str) -> None:
    assert faults(**sections) == [(field, "bad-value")]


def test_all_faults_at_once_even_rules_beside_bad_values() -> None:
    found = faults(
        arch="sm_90",
        dtypes={"qkv": "bf16"},
        scales={"q": "token", "v": "tokn"},
        heads={"q": 3, "group": 2},
        tile={"block_k": 3},
    )
    assert found == [
        ("arch", "bad-value"),
        ("scales.v", "bad-value"),
        ("heads.q", "heads-group"),
        ("scales.q", "needless-scale"),
        ("tile.block_k", "unknown-key"),
    ]


@pytest.mark.parametrize(
    ("sections", "way_out"),
    [
        ({"dtypes": {"qkv": "e4m4"}}, "did you mean e4m3?"),
        ({"tile": {"blok_n": 64}}, "did you mean block_n?"),
        ({"kv_stages": 2}, "kv_stages is a key of pipeline"),
        ({"tile": {"block_m": 100}}, "set block_m: 96 or 112"),
        ({"tile": {"block_m": 10**9}}, "set block_m: 512"),
        ({"tile": {"block_m": "64"}}, "write the number without quotes"),
        ({"tile": {"block_m": None}}, "leave tile.block_m out for the default auto"),
    ],
)
def test_way_out(sections: dict[str, object], way_out: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**sections)
    assert [fault.help for fault in caught.value.diagnostics] == [way_out]


def test_small_unions_become_models() -> None:
    assert spec(mask={"window": [128, 0]}).mask == WindowMask(window=(128, 0))
    assert spec(mask={"chunk": 8192}).mask == ChunkMask(chunk=8192)
    assert spec(mask={"prefix_lm": True}).mask == PrefixLmMask(prefix_lm=True)
    assert spec(layout={"kv": {"paged": 64}}).layout.kv == Paged(paged=64)
    assert spec(mask={"window": [128, 0]}).to_mapping()["mask"] == {"window": [128, 0]}


def test_specs_are_immutable_all_the_way() -> None:
    found = spec()
    with pytest.raises(pydantic.ValidationError):
        found.name = "other"  # type: ignore[misc]
    with pytest.raises(pydantic.ValidationError):
        found.tile.block_m = 64  # type: ignore[misc]


def test_from_mapping_leaves_its_argument_alone_and_takes_read_only_mappings() -> None:
    data = mapping(scales={"v": "token", "rope": "raw"})
    before = json.dumps(data)
    Spec.from_mapping(data)
    assert json.dumps(data) == before
    frozen = {
        key: MappingProxyType(value) if isinstance(value, dict) else value for key, value in data.items()
    }
    assert Spec.from_mapping(MappingProxyType(frozen)) == Spec.from_mapping(data)


def test_sections_may_be_models() -> None:
    found = spec(dtypes={"qkv": "f16"})
    again = Spec(name="k", arch="sm_90a", dtypes=found.dtypes, dims=found.dims, mask=found.mask)
    assert again == found


def test_origin_takes_no_part_in_identity_and_locates_the_nearest_field() -> None:
    origin = Origin(path="x.yaml", positions={"": (1, 1), "tile": (5, 1), "tile.block_m": (6, 12)})
    plain, placed = spec(), Spec.from_mapping(mapping(), origin=origin)
    assert plain == placed
    assert hash(plain) == hash(placed)
    assert plain.digest() == placed.digest()
    assert plain.to_mapping() == placed.to_mapping()
    assert plain.origin.path is None

    def place(field: str | None) -> tuple[str | None, int | None, int | None]:
        found = placed.locate(Diagnostic(code="c", message="m", field=field))
        return found.path, found.line, found.col

    assert place("tile.block_m") == ("x.yaml", 6, 12)
    assert place("tile.block_n") == ("x.yaml", 5, 1)
    assert place("pipeline.kv_stages") == ("x.yaml", 1, 1)
    assert place(None) == ("x.yaml", 1, 1)
    assert plain.locate(Diagnostic(code="c", message="m", field="tile")).render() == "error[c]: m"
    copy = pickle.loads(pickle.dumps(placed))
    assert copy == placed
    assert copy.origin == origin


def test_digest_moves_with_every_value() -> None:
    digests = {
        spec().digest(),
        spec(name="other").digest(),
        spec(tile={"block_m": 64}).digest(),
        spec(softmax={"softcap": 30}).digest(),
        spec(softmax={"softcap": 30.5}).digest(),
    }
    assert len(digests) == 5
    assert spec(softmax={"softcap": 30}).digest() == spec(softmax={"softcap": 30.0}).digest()
    assert spec().digest() == sha256(DEFAULTS)
    assert spec() != spec(name="other")
    assert spec() != "spec"


def test_canonical_json_is_one_text_per_value() -> None:
    assert canonical_json({"b": (1, 2.5), "a": {"d": None, "c": "é"}}) == (
        b'{"a":{"c":"\\u00e9","d":null},"b":[1,2.5]}'
    )
    assert sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert short(b"abc") == "ba7816bf8f01"
    assert sha256({"a": 1}) == sha256(b'{"a":1}')
    with pytest.raises(ValueError, match=r"\$\.a\[0\] is nan"):
        sha256({"a": [float("nan")]})
    with pytest.raises(TypeError, match="text keys"):
        sha256({1: 2})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="plain JSON"):
        sha256({"a": {1, 2}})


def sections_of(model: type[pydantic.BaseModel]) -> list[type[pydantic.BaseModel]]:
    """The model and all models in its fields."""
    found = [model]
    for info in model.model_fields.values():
        for part in (info.annotation, *typing.get_args(info.annotation)):
            section = section_of(part)
            if section is not None:
                found += sections_of(section)
    return found


def test_every_field_is_described() -> None:
    models = sections_of(Spec)
    assert len(set(models)) == 16
    for model in models:
        for name, info in model.model_fields.items():
            assert info.description, f"{model.__name__}.{name} has no description"


def test_json_schema_covers_the_file() -> None:
    schema = json_schema()
    assert list(schema["properties"]) == [*DEFAULTS, "matrix"]
    assert schema["required"] == ["name", "arch", "dtypes", "dims"]
    assert schema["additionalProperties"] is False
    tile = schema["$defs"]["Tile"]["properties"]["block_m"]
    auto, number = tile["anyOf"]
    assert (auto["const"], auto["type"]) == ("auto", "string")
    assert number == {"type": "integer", "minimum": 16, "maximum": 512, "multipleOf": 16}
    varied = schema["properties"]["matrix"]["propertyNames"]["enum"]
    assert {"tile.block_n", "layout.v", "layout.kv.paged", "mask", "mask.chunk"} <= set(varied)
    assert not {"name", "spec_version", "mask.window", "tile"} & set(varied)
    json.dumps(schema, allow_nan=False)


def test_archs_of_the_spec_are_the_archs_of_the_table() -> None:
    assert typing.get_args(Arch) == tuple(ARCHS)


def test_arch_limits_hang_together() -> None:
    for arch in ARCHS.values():
        assert arch.smem_per_cta_bytes == arch.smem_per_sm_bytes - arch.smem_reserved_per_cta_bytes == 232448
        assert [arch.launch_cap_regs(threads) for threads in (128, 256, 384, 512, 1024)] == [
            255,
            255,
            168,
            128,
            64,
        ]
        assert [regs for regs in (16, 24, 28, 240, 256, 264) if arch.setmaxnreg_allows(regs)] == [
            24,
            240,
            256,
        ]
    assert [arch.tmem_cols for arch in ARCHS.values()] == [0, 512, 512, 512]
    assert [arch.family for arch in ARCHS.values()] == ["hopper", "blackwell", "blackwell", "blackwell"]


def test_dtypes_agree_with_numpy_and_ml_dtypes() -> None:
    assert numpy_dtype(DTYPES["e4m3"]) == numpy.dtype(ml_dtypes.float8_e4m3fn)
    for dtype in DTYPES.values():
        found = numpy_dtype(dtype)
        info = ml_dtypes.finfo(found)
        assert (found.itemsize, found.name) == (dtype.bytes, dtype.array_dtype)
        assert (float(info.max), info.nmant) == (dtype.max_finite, dtype.mantissa_bits)
        assert dtype.accepts(found.name)
        assert dtype.accepts(f"torch.{dtype.torch_dtype}")
        assert not dtype.accepts("float64")
        for view in dtype.array_views:
            assert numpy.dtype(view).itemsize == dtype.bytes
    assert [dtype.tensor_map_value for dtype in DTYPES.values()] == [0, 0, 9, 6, 7]
    assert DTYPES["e4m3"].accepted_names() == ("float8_e4m3fn", "uint8")
