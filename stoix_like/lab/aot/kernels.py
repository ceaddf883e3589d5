"""Kernels, collectives and transfers of a compiled program, read from the text of its optimised HLO.

The body of a loop is a computation, and each of its operations that computes or moves anything is a kernel: on a GPU, a
launch.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Rates(NamedTuple):
    """What a GPU does in a microsecond."""

    bytes: float  # that its memory moves
    cached_bytes: float  # that its cache moves
    cache: float  # the most bytes of a kernel that the kernel before it leaves in the cache
    # Floating-point operations of products of matrices: of float32 rounded to TF32, with twice as many of bfloat16, and
    # of those that are computed in float32, on no matrix unit.
    flops: float
    exact_flops: float


class Kernel(NamedTuple):
    """A kernel and its predicted cost."""

    origin: str  # the scopes and the operation that it was traced from; its name in the program if it is not told
    cost: float  # on a GPU, microseconds; on a TPU, cycles


class Body(NamedTuple):
    """A program, or the body of one of its loops."""

    label: str  # the scope that it was traced in, such as `rollout`; empty where it is the parent's
    trips: int | None  # how often it runs per run of the parent; None where that is known at run time only
    kernels: int  # operations that compute or move anything, without those of inner loops
    collectives: int  # how many of them communicate with other devices
    transfers: int  # how many of them communicate with the host
    bytes: int  # that they read and write
    own_products: int  # floating-point operations of their products of matrices
    scopes: Mapping[str, int]  # how many of the kernels were traced in each scope that is inside of the body's own
    costs: tuple[Kernel, ...] = ()  # the kernels with a predicted cost
    loops: tuple[Body, ...] = ()  # the loops in it; branches of a condition are loops of at most one trip

    @property
    def launches(self) -> int:
        """Kernels of one run, with inner loops; a loop of unknown length counts once."""
        return self.kernels + sum((loop.trips or 1) * loop.launches for loop in self.loops)

    @property
    def bytes_accessed(self) -> int:
        """Bytes of one run, with inner loops."""
        return self.bytes + sum((loop.trips or 1) * loop.bytes_accessed for loop in self.loops)

    @property
    def products(self) -> int:
        """Floating-point operations of the products of one run, with inner loops."""
        return self.own_products + sum((loop.trips or 1) * loop.products for loop in self.loops)

    @property
    def cost(self) -> float:
        """Predicted cost of the kernels of one run, with inner loops."""
        return sum(kernel.cost for _, kernel in self.repeated())

    def repeated(self, times: int = 1) -> Iterator[tuple[int, Kernel]]:
        """Yield the kernels with a predicted cost, each with its runs per run of this body and their total cost."""
        for kernel in self.costs:
            yield times, kernel._replace(cost=times * kernel.cost)
        for loop in self.loops:
            yield from loop.repeated(times * (loop.trips or 1))

    def all(self) -> Iterator[Body]:
        """Yield this body and those in it."""
        yield self
        for loop in self.loops:
            yield from loop.all()


class _Operation(NamedTuple):
    """A line of HLO: `name = type opcode(operands), attributes`."""

    name: str
    type: str
    opcode: str
    operands: tuple[str, ...]
    rest: str
    is_root: bool


# What XLA's cost model writes for a TPU.
_CYCLES = re.compile(r'"estimated_cycles":"([\d.e+-]+)"')
# What our own kernels write, per block, and how many blocks there are; and cuDNN's convolutions.
_OWN = {name: re.compile(rf'{name}(?:\\22|\\?"): ?(?:\\22|\\?")(\d+)') for name in ("flops", "loads")}
_CONVOLUTION = re.compile(r'custom_call_target="__cudnn\$conv(\w+)"')
# Of a dot, and of a call of cuDNN.
_EXACT = re.compile(r'operand_precision["\\:=\[{ ]*highest', re.IGNORECASE)
_GRID = re.compile(r"grid_[xyz] = (\d+)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_OPERATION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_CALL = re.compile(r" ([\w\-]+)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b(pred|bf16|token|[a-z]+?(\d+)[a-z0-9]*)\[([\d,]*)\]")
_TRIPS = re.compile(r'known_trip_count\\?":\s*\{\s*\\?"n\\?":\s*\\?"(\d+)')
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(?:true|false)_computation=%?([\w.\-]+)")
_CALLBACK = re.compile(r'custom_call_target="[^"]*(?:callback|HostExecute|SendToHost|RecvFromHost)')
# Names without a computation, and the second halves of asynchronous operations.
_FREE = {
    "parameter", "tuple", "constant", "bitcast", "get-tuple-element", "after-all", "partition-id", "replica-id",
    "opt-barrier", "domain",
}  # fmt: skip
_COLLECTIVES = {
    "all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "collective-broadcast",
    "ragged-all-to-all",
}  # fmt: skip
_TRANSFERS = {"infeed", "outfeed", "send", "recv"}
_CONTROL = {"while", "conditional"}
# Segments of the path of an operation that jax adds.
_ADDED = re.compile(
    r"while|body|cond|scan|shard_map|closed_call|checkpoint|rematted_computation|branch_\d+_fun|\w*jit\(.*"
)
_TRANSFORM = re.compile(r"(\w+)\((.*)\)")


def read_program(text: str, rates: Rates | None = None) -> Body:
    """Read the optimised HLO of a program; without the rates of a GPU, with the cycles that a TPU's compiler predicts.

    A kernel of a GPU takes as long as its bytes or its products, whichever take longer.
    """
    return _Reader(text, rates).read()


class _Reader:
    """The computations of a program by name."""

    def __init__(self, text: str, rates: Rates | None) -> None:
        self._rates = rates
        self._computations: dict[str, list[_Operation]] = {}
        current: list[_Operation] = []
        for line in text.splitlines():
            if match := _COMPUTATION.match(line):
                current = self._computations.setdefault(match[2], [])
                if match[1]:
                    self._entry = match[2]
            elif match := _OPERATION.match(line):
                current.append(_parse(match[2], match[3], bool(match[1])))

    def read(self) -> Body:
        return self._body(self._entry, "", 1)

    def _body(self, name: str, label: str, trips: int | None, scope: tuple[str, ...] = ()) -> Body:
        kernels = collectives = transfers = size = flops = 0
        loops: list[Body] = []
        scopes: Counter[str] = Counter()
        costs: list[Kernel] = []
        for operation, types in self._operations(name):
            base = operation.opcode.removesuffix("-start").removesuffix("-done")
            if base in _CONTROL:
                loops += self._loops(operation, scope)
                continue
            if base in _FREE or operation.opcode.endswith(("-done", "-update")):
                continue
            kernels += 1
            collectives += base in _COLLECTIVES
            transfers += base in _TRANSFERS or bool(_CALLBACK.search(operation.rest))
            own, products = self._bytes(operation, types), [*self._products(operation, types)]
            size += own
            flops += sum(count for count, _ in products)
            inside = _scope(operation.rest)
            scopes.update(set(inside) - set(scope))
            origin = "/".join(inside) or operation.name
            if self._rates:
                costs.append(Kernel(origin, _microseconds(self._rates, own, _own(operation, "loads"), products)))
            elif match := _CYCLES.search(operation.rest):
                costs.append(Kernel(origin, float(match[1])))
        counts = kernels, collectives, transfers, size, flops
        return Body(label, trips, *counts, dict(scopes), tuple(costs), tuple(loops))

    def _products(self, operation: _Operation, types: dict[str, str]) -> Iterator[tuple[int, str]]:
        """Yield the floating-point operations of each product in an operation, and their type, such as `exact`."""
        if flops := _own(operation, "flops"):
            yield flops, "bf16" if "bfloat16" in operation.rest else "f32"
        elif operation.opcode in ("dot", "convolution") or _CONVOLUTION.search(operation.rest):
            yield _product(operation, types)
        elif operation.opcode == "fusion":
            inside = self._computations.get(_attribute(operation.rest, "calls"), [])
            types = {one.name: one.type for one in inside}
            for one in inside:
                yield from self._products(one, types)

    def _operations(self, name: str) -> Iterator[tuple[_Operation, dict[str, str]]]:
        """Yield the operations of a computation and of those that it calls, with the types of what is named there."""
        types = {operation.name: operation.type for operation in self._computations[name]}
        for operation in self._computations[name]:
            if operation.opcode == "call":
                yield from self._operations(_attribute(operation.rest, "to_apply"))
            else:
                yield operation, types

    def _loops(self, operation: _Operation, scope: tuple[str, ...]) -> list[Body]:
        """Return the bodies that an operation runs; of a condition the largest branch, which may not run."""
        if operation.opcode == "while":
            inner = _scope(operation.rest)
            label = inner[-1] if inner[len(scope) :] else ""
            return [self._body(_attribute(operation.rest, "body"), label, self._trips(operation), inner or scope)]
        names = [first or second for first, second in _BRANCHES.findall(operation.rest)]
        branches = [name.strip().lstrip("%") for listed in names for name in listed.split(",")]
        return [max((self._body(name, "branch", 1, scope) for name in branches), key=lambda body: body.launches)]

    def _trips(self, operation: _Operation) -> int | None:
        """Return the trip count of a loop: XLA's own, or what its condition compares the first counter with."""
        if match := _TRIPS.search(operation.rest):
            return int(match[1])
        condition = self._computations[_attribute(operation.rest, "condition")]
        by_name = {one.name: one for one in condition}
        last = next(one for one in condition if one.is_root)
        bound = by_name.get(last.operands[-1]) if last.operands else None
        if last.opcode != "compare" or "direction=LT" not in last.rest or bound is None or bound.opcode != "constant":
            return None
        value = re.search(r"constant\((\d+)\)", bound.rest)
        return int(value[1]) if value else None

    def _bytes(self, operation: _Operation, types: dict[str, str]) -> int:
        """Return the bytes that an operation reads and writes; of a sliced array, the bytes of the slice."""
        sizes = [_size(types.get(name, "")) for name in operation.operands]
        written = _size(operation.type)
        if operation.opcode == "dynamic-slice":
            return 2 * written
        if operation.opcode == "dynamic-update-slice":
            return 2 * sizes[1]
        if operation.opcode != "fusion":
            return sum(sizes) + written
        inside = self._computations.get(_attribute(operation.rest, "calls"), [])
        return _fused_bytes(inside, sizes, written)


def _fused_bytes(inside: list[_Operation], sizes: list[int], written: int) -> int:
    """Return the bytes of a fusion."""
    types = {one.name: one.type for one in inside}
    users: dict[str, list[_Operation]] = {}
    for one in inside:
        for name in one.operands:
            users.setdefault(name, []).append(one)
    total = written
    for one in inside:
        match = re.search(r"parameter\((\d+)\)", one.rest) if one.opcode == "parameter" else None
        if match is None or int(match[1]) >= len(sizes):
            continue
        size, used = sizes[int(match[1])], users.get(one.name, [])
        if used and all(user.opcode in ("dynamic-slice", "gather") and user.operands[0] == one.name for user in used):
            size = min(size, sum(_size(user.type) for user in used))
        elif used and all(user.opcode == "dynamic-update-slice" and user.operands[0] == one.name for user in used):
            # In place: only the slice is written, and the array is neither read nor written as a whole.
            slices = sum(_size(types.get(user.operands[1], "")) for user in used)
            total, size = total - size + slices, 0
        total += size
    return max(total, 0)


def _own(operation: _Operation, name: str) -> int:
    """Return what one of our own kernels tells of a block, times its blocks; 0 for other kernels."""
    match = _OWN[name].search(operation.rest) if operation.opcode == "custom-call" else None
    return int(match[1]) * math.prod(map(int, _GRID.findall(operation.rest))) if match else 0


def _microseconds(rates: Rates, size: int, loads: int, products: list[tuple[int, str]]) -> float:
    """Return the time of a kernel on a GPU, from its bytes, what its blocks load from the cache, and its products."""
    per_type = {"bf16": 2 * rates.flops, "exact": rates.exact_flops}
    computing = sum(count / per_type.get(dtype, rates.flops) for count, dtype in products)
    memory = size / (rates.cached_bytes if size <= rates.cache else rates.bytes)
    return max(memory, loads / rates.cached_bytes, computing)


def _product(operation: _Operation, types: dict[str, str]) -> tuple[int, str]:
    """Return two operations for each term of a product, or of a convolution, and the type of its operands."""
    arrays = [_shape(types.get(name, name)) for name in (operation.type, *operation.operands[:2])]
    result, (dtype, left), (_, right) = arrays
    if dtype == "f32" and _EXACT.search(operation.rest):
        dtype = "exact"
    if operation.opcode == "dot":
        axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", operation.rest)
        terms = math.prod(left[int(axis)] for axis in axes[1].split(",") if axis) if axes else 1
        return 2 * math.prod(result[1]) * terms, dtype
    convolution, labels = _CONVOLUTION.search(operation.rest), re.search(r"dim_labels=\w+?_(\w+)->", operation.rest)
    # A gradient of a convolution has as many terms as the convolution itself.
    kind = convolution[1] if convolution else ""
    outputs = {"BackwardFilter": right, "BackwardInput": left}.get(kind, result[1])
    kernel = result[1] if kind == "BackwardFilter" else right
    return 2 * math.prod(outputs) * math.prod(kernel) // kernel[labels[1].index("o") if labels else -1], dtype


def _shape(type_text: str) -> tuple[str, list[int]]:
    """Return the element type and the sides of an array."""
    match = _ARRAY.search(type_text)
    return (match[1], [int(side) for side in match[3].split(",") if side]) if match else ("", [])


def _parse(name: str, text: str, is_root: bool) -> _Operation:
    """Parse `type opcode(operands), attributes`."""
    end = _closing(text, 0) if text.startswith("(") else 0
    call = _CALL.search(text, end)
    if call is None:
        return _Operation(name, text, "", (), text, is_root)
    closed = _closing(text, call.end() - 1)
    operands = tuple(_OPERAND.findall(text[call.end() : closed]))
    return _Operation(name, text[: call.start()], call[1], operands, text[call.start() :], is_root)


def _closing(text: str, start: int) -> int:
    """Return the position of the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    return len(text)


def _attribute(text: str, name: str) -> str:
    match = re.search(rf"\b{name}=%?([\w.\-]+)", text)
    return match[1] if match else ""


def _size(type_text: str) -> int:
    """Return the bytes of an array, or of the arrays of a tuple."""
    total = 0
    for match in _ARRAY.finditer(type_text):
        bits = {"pred": 8, "bf16": 16, "token": 0}.get(match[1]) if not match[2] else int(match[2])
        shape = [int(side) for side in match[3].split(",") if side]
        total += math.prod(shape) * (bits or 0) // 8
    return total


def _scope(text: str) -> tuple[str, ...]:
    """Return the named scopes of an operation, from the outermost; `name (backward)` within a gradient."""
    match = re.search(r'op_name="([^"]*)"', text)
    if match is None:
        return ()
    # Scopes of inner loops follow the last body.
    segments = _split(match[1])
    return tuple(found for segment in segments if (found := _scope_of(segment)))


def _split(path: str) -> list[str]:
    """Split a path at slashes outside of brackets."""
    segments, depth, start = [], 0, 0
    for position, letter in enumerate(path):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth == 0:
            segments.append(path[start:position])
            start = position + 1
    return [*segments, path[start:]]


def _scope_of(segment: str) -> str:
    """Return the scope of a segment of a path: without jax's transformations, and empty where jax added it."""
    backward = False
    while not segment.startswith("jit(") and (match := _TRANSFORM.fullmatch(segment)):
        backward |= match[1] == "transpose"
        segment = match[2]
    if not segment or _ADDED.fullmatch(segment):
        return ""
    return f"{segment} (backward)" if backward else segment
