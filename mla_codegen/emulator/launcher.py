"""The few lines of C++ between ctypes and the entries of a generated file."""

from __future__ import annotations

from mla_codegen.plan.model import Plan, Variant

_HEAD = """\
#include "launch.hpp"
#include "{name}.cu"
"""

_ENTRY = """
namespace {{
struct Arguments{index} {{
  mla::TensorMap maps[{num_maps}];
  {namespace}::Params params;
}};
void body{index}(const void* pointer) {{
  const auto& a = *static_cast<const Arguments{index}*>(pointer);
  {namespace}::{entry}({arguments});
}}
}}  // namespace
extern "C" mla::emulator::Results* mla_emulator_run_{index}(
    const mla::emulator::RunConfig* config, const mla::emulator::GlobalRange* ranges, mla::u32 num_ranges,
    const void* maps, const mla::u64* slots) {{
  Arguments{index} a{{}};
  __builtin_memcpy(a.maps, maps, {map_bytes});
{members}
  return mla::emulator::run_grid(*config, ranges, num_ranges, body{index}, &a);
}}
"""


def launcher_source(plan: Plan) -> str:
    """The launcher of a plan: `mla_emulator_run_<variant>` per entry, Params filled member by member."""
    parts = [_HEAD.format(name=plan.name)]
    parts += [_entry(index, variant) for index, variant in enumerate(plan.variants)]
    return "".join(parts)


def _entry(index: int, variant: Variant) -> str:
    count = len(variant.tensor_maps)
    members = (
        f"  a.params.{field.name} = mla::emulator::from_slot<decltype(a.params.{field.name})>(slots[{slot}]);"
        for slot, field in enumerate(variant.params)
    )
    return _ENTRY.format(
        index=index,
        num_maps=max(count, 1),
        map_bytes=128 * count,
        namespace=variant.namespace,
        entry=variant.entry,
        arguments=", ".join([*(f"a.maps[{i}]" for i in range(count)), "a.params"]),
        members="\n".join(members),
    )
