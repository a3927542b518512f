"""Frozen types of the profile files. Every number carries its source beside it, and how far it can be trusted."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

# verified: run and seen on that hardware, `source` says by whom. published: somebody else's documented figure.
# inferred: arithmetic or analogy. unverified: documented, and nobody known has run it. simulated: the lab's.
Status = Literal["verified", "published", "inferred", "unverified", "simulated"]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")]
Source = Annotated[str, Field(min_length=3)]
Texts = Annotated[tuple[str, ...], Field(strict=False)]


class Strict(BaseModel):
    """Unknown keys are errors, types are not converted, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Amount(Strict):
    """A whole number with its source; the field's name says of what (bytes, watts, bytes per second, seconds)."""

    value: Annotated[int, Field(ge=0)]  # the number itself
    source: Source  # where it is published, or by what arithmetic it came
    status: Status  # how far it can be trusted


class Unknown(Strict):
    """A fact that nobody has published. `supply` is the key of cluster.yml with which a user can give it."""

    unknown: Annotated[str, Field(min_length=3, description="which fact is missing")]
    supply: str


class Verdict(Strict):
    """Who has seen it work, if anybody."""

    status: Status  # the vocabulary of Amount
    source: Source  # who says so, with a date where there is one
    note: str = ""  # what to know beside it


class GpuLinks(Strict):
    """GPU-to-GPU links. `per_direction` is bytes per second of one GPU's links together, one way."""

    kind: Literal["nvlink4", "nvlink5", "xgmi"]  # kind and generation
    count: Annotated[int, Field(ge=1)]  # links of one GPU
    per_direction: Amount


Format = Literal["mxfp4", "nvfp4", "fp8", "bf16"]


class Gpu(Strict):
    """One GPU type. `reported_names` are what drivers call it; memory is what the driver reports, in bytes.

    `formats` are native; `weight_only` ones stay packed in memory and are computed in bf16 (W4A16, slower).
    """

    name: Name  # the file's name without .yml
    title: str  # for people
    vendor: Literal["nvidia", "amd", "simulated"]  # chooses image, container options and driver check
    reported_names: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
    pci_ids: Texts = ()  # vendor and device id, as 10de:2335; for people, nothing compares them
    compute: Annotated[str, Field(description="compute capability such as 9.0, or gfx950")]
    memory_bytes: Amount  # of one GPU
    formats: Annotated[tuple[Format, ...], Field(strict=False)] = ()
    weight_only: Annotated[tuple[Format, ...], Field(strict=False)] = ()
    links: GpuLinks | None = None  # null: none, or none is known
    power_watts: Amount | None = None  # of one GPU at full load
    refused: Annotated[str, Field(description="why this GPU cannot serve any model here; empty when it can")] = ""
    verdict: Verdict  # of the figures above


class Nics(Strict):
    """The compute network interfaces of one node; `rate` is bits per second of each."""

    count: Annotated[int, Field(ge=0)]  # 0: none beside the management interface
    rate: Amount
    kind: Literal["infiniband or roce", "roce", "ethernet", "simulated"]  # what they speak


class Collective(Strict):
    """An expected bus bandwidth in bytes per second; `floor` is what burn-in should demand; it does not yet."""

    operation: Literal["all_reduce", "all_gather", "alltoall", "send_recv"]  # as torch.distributed calls it
    gpus: Annotated[int, Field(ge=2)]  # ranks that take part
    message_bytes: Annotated[int, Field(ge=1)]  # size of the message that `expected` was seen with
    expected: Amount  # bytes per second
    floor: Amount


class SimulatedHardware(Strict):
    """Where a lab node keeps its simulated hardware."""

    sysfs_root: str  # tree that stands for /sys
    nvml_library_path: str  # library that stands for libnvidia-ml


class Platform(Strict):
    """One kind of server. `link_domain` is the number of GPUs that NVLink or xGMI joins (8 in a node, 72 in a rack)."""

    name: Name  # the file's name without .yml
    title: str  # for people
    gpu: Name  # a GPU profile's name
    gpus_per_node: Annotated[int, Field(ge=1)]  # preflight wants exactly so many
    link_domain: Annotated[int, Field(ge=1)]
    architecture: Literal["x86_64", "aarch64", "any"]  # as `uname -m` says it
    nics: Nics  # of one node
    nvswitch: bool = False  # the GPUs are joined by NVSwitch chips; recorded
    fabric_manager: bool = False  # needs nvidia-fabricmanager; recorded, nothing checks it yet
    nvlsm: bool = False  # needs the NVLink subnet manager; recorded, nothing checks it yet
    imex: bool = False  # needs nvidia-imex for NVLink between nodes; recorded, nothing checks it yet
    memory_bytes: Amount  # host RAM, the least that serving needs
    disk_bytes: Amount | None = None  # local NVMe of one node, as the server is sold
    disk_read: Amount | None = None  # bytes per second of local NVMe, for load times
    power_watts: Amount | None = None  # one node at full load
    reserve_bytes: Amount  # disk left free beside weights and runtime
    memlock: bool  # locked memory must be unlimited: RDMA pins it
    max_nodes: Annotated[int, Field(ge=1)]  # more than so many are refused
    collectives: Annotated[tuple[Collective, ...], Field(strict=False)] = ()  # recorded; burn-in reads none yet
    simulated: SimulatedHardware | None = None  # of the lab only
    verdict: Verdict  # of the figures above


class Draft(Strict):
    """A draft model for speculative decoding, and the engine families it was made for.

    `always` drafts are staged with the model whether or not the layout speculates. `tokens` is the number to draft.
    The layers of an `mla` draft share the target's KV cache groups; those of a `gqa` draft have a cache of their own.
    """

    name: Name  # as `strategy.draft` of cluster.yml names it
    repo: str  # repository on the hub
    revision: Commit | Unknown  # the pin
    bytes: Amount  # the whole repository
    layers: Annotated[int, Field(ge=0)]  # of the draft model
    attention: Literal["mla", "gqa"] = "gqa"  # kind of its layers
    tokens: Annotated[int, Field(ge=0)]
    families: Texts  # engine families, such as vllm
    always: bool = False
    source: Source  # who published it, and for what


class ArchitectureData(Strict):
    """The fields of memory.architecture.Architecture, with one source for all of them.

    `..._bits` are bits per weight, scales included.
    """

    source: Source  # of all fields below
    layers: int  # all of them, without a draft's
    mla_layers: Annotated[tuple[int, ...], Field(strict=False)]  # numbers of the full-attention layers, counted from 1
    dense_layers: int  # first layers without experts
    hidden: int  # width of the residual stream
    latent: int  # width that the routed experts work in
    experts: int  # routed experts of a layer
    expert_width: int  # of one routed expert
    expert_bits: float  # of routed experts
    shared_width: int  # of the shared experts together
    dense_width: int  # of a dense layer's MLP
    heads: int  # attention heads
    kda_head: int  # elements of one KDA head
    kda_conv: int  # width of the KDA convolution
    kda_gate_rank: int  # of the low-rank KDA gate
    mla_q_rank: int  # of the compressed query
    mla_kv_rank: int  # of the compressed key and value, which the cache holds
    mla_rope: int  # elements with positions, for each key
    mla_nope: int  # elements without positions, for each key head
    mla_value: int  # elements of a value head
    vocab: int  # size of the vocabulary
    residual_block: int  # layers per attention-residual block
    vision_bytes: int  # of the vision tower
    attention_bits: float = 16.0  # of KDA and MLA projections
    mlp_bits: float = 16.0  # of shared experts and dense layers
    latent_bits: float = 16.0  # of the projections into and out of the routed experts' width


class Model(Strict):
    """One model repository. `revisions` are all commits that are known, with who used them; `revision` is the pin.

    `bytes` is the whole repository as staged, `shard_bytes` its weight files alone.
    """

    name: Name  # the file's name without .yml
    title: str  # for people
    repo: str  # repository on the hub
    revision: Commit | Unknown
    revisions: dict[Commit, str] = Field(default_factory=dict)
    served_name: str  # what clients put into `model`
    format: Format  # of the routed experts' weights
    bytes: Amount | Unknown
    shard_bytes: Amount | None = None
    shards: Amount | Unknown  # number of weight files; recorded
    heads: Amount | Unknown  # attention heads; tensor parallel sizes must divide them
    max_model_len: Amount | Unknown  # tokens, the longest that the model allows
    architecture: ArchitectureData | None = None  # None: memory cannot be planned, only shown as unknown
    drafts: Annotated[tuple[Draft, ...], Field(strict=False)] = ()  # models to speculate with
    license: str = ""  # name of the licence
    verdict: Verdict  # of the figures above


class Image(Strict):
    """A container image. `digest` is sha256:... when a source pins it."""

    ref: str  # registry/repository:tag
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    unpacked_bytes: Amount  # on disk
    source: Source  # who names it
    status: Status  # of the whole entry


class ContainerRuntime(Strict):
    """The serving environment as a container image per GPU vendor, run by docker with these options."""

    kind: Literal["container"]  # tells it from a bundle
    images: dict[Literal["nvidia", "amd"], Image]  # by GPU vendor
    options: dict[Literal["nvidia", "amd"], Texts]  # of docker run, by GPU vendor
    shm_bytes: Amount  # size of /dev/shm inside


class BundleRuntime(Strict):
    """The serving environment as one archive; `record` is the file that names its digest, size and folder."""

    kind: Literal["bundle"]  # tells it from a container
    name: Name  # of the archive, and of its folder together with a digest
    record: str
    url: Annotated[str, Field(description="where nodes fetch the archive; {hub} and {archive} are filled in")]


class Version(Strict):
    """One engine version: its environment and the oldest driver (major number) that the environment runs on."""

    version: Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?([.a-z0-9]*)$")]  # as the engine's release is called
    runtime: Annotated[ContainerRuntime | BundleRuntime, Field(discriminator="kind")]  # a container image or an archive
    min_driver: dict[Literal["nvidia", "amd"], Amount] = Field(default_factory=dict)  # major number, by vendor
    verdict: Verdict  # of this version as a whole


class Change(Strict):
    """A flag or variable that not every version has. `since` is the first version with it, `until` the last.

    `becomes`: what is rendered instead in versions without it; empty = it is left out there, and that is said.
    """

    name: str  # the flag with its dashes, or the variable
    since: str = ""
    until: str = ""
    becomes: str = ""
    source: Source  # who says since when


class ArgumentSet(Strict):
    """Arguments and environment that several layouts share. Templates as in Layout."""

    argv: Texts = ()  # arguments
    env: dict[str, str] = Field(default_factory=dict)  # variables
    source: Source  # who uses them


class Measured(Strict):
    """A published or own measurement of exactly this layout. `value` in `unit`; `context` says under what settings.

    `max_model_len` is what it was measured at, when the layout has another: reported KV tokens depend on it.
    """

    what: Literal[
        "weights_per_gpu", "kv_pool", "kv_tokens", "peak_throughput", "single_stream", "ready_seconds", "load_seconds"
    ]
    value: float
    unit: Literal["bytes", "tokens", "tokens/s", "s"]
    context: str = ""
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    source: Source  # who measured, when, with what


class MemorySettings(Strict):
    """What the memory arithmetic needs of a layout's flags. `utilization` is the engine's own fraction flag.

    `workspace_bytes` is everything beside weights, KDA state and KV: activations, graphs, libraries, with its source.
    vLLM's buffers that follow from flags are counted apart and shown by name; the larger of the two sums is taken.
    SGLang: only what is taken before the weights (contexts, communicators, symmetric memory); its activations and
    graphs live in what --mem-fraction-static keeps back.
    """

    utilization: Annotated[float, Field(gt=0, le=1)]
    kv: Literal["fp8", "bf16"]  # format of the KV cache
    state: Literal["fp32", "bf16"] = "fp32"  # format of the KDA state
    prefix_caching: bool  # the engine keeps prefixes: more state per request
    state_ratio: Annotated[float, Field(ge=0)] = 0.0  # SGLang --mamba-full-memory-ratio
    cache_strategy: str = ""  # SGLang --mamba-radix-cache-strategy
    workspace_bytes: Amount
    moe_floor: bool = True  # vLLM pads expert shards to 256 without expert parallelism
    text_only: bool = False  # the vision tower is not loaded


class Layout(Strict):
    """How one engine runs one model on one platform: sizes, argv and environment of each rank as templates.

    Templates know {bin}, {model}, {served_name}, {draft}, {draft_tokens}, {tp}, {pp}, {dp}, {dp_local}, {dcp}, {ep},
    {world}, {nnodes}, {node_rank}, {dp_start}, {head}, {head_host} (in brackets when it is IPv6), {address},
    {interface}, {port}, {master_port}, {max_model_len}, {max_num_seqs}, {max_batched}, {utilization},
    {ready_seconds}; anything else is an error. `tp` x `pp` x `dp` are all GPUs; {ep} is tp x dp, or 1 without expert
    parallelism; SGLang's --tp-size under DP attention is {ep}. {dp_start} is the first data-parallel rank of a node.
    `sets` come first, then `argv`, then `argv_head` or `argv_worker`; a flag or variable that two of them give is an
    error that names both. A set called `draft-<name>` is added when cluster.yml asks for that draft. The variables
    that name the network interface (GLOO_, NCCL_, TP_SOCKET_IFNAME) are the launcher's: no layout may give them.
    A flag is one item, `--flag` or `--flag=value`, or `--flag` followed by items that do not begin with a dash.
    `preference` orders layouts of one platform and size: 1 is the planner's choice; `why` is the measured reason.
    """

    name: Name  # as `strategy.layout` of cluster.yml names it
    platforms: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]  # platform profiles that it is for
    models: Annotated[tuple[Name, ...], Field(strict=False, min_length=1)]  # model profiles that it is for
    nodes: Annotated[tuple[int, ...], Field(strict=False, min_length=1)]  # numbers of nodes that it is for
    strategy: Literal["tp", "tep", "tp_pp", "tp_dp", "dep"]  # kind of layout, for people
    tp: Annotated[int, Field(ge=1)] | Literal["world"]
    pp: Annotated[int, Field(ge=1)] = 1
    dp: Annotated[int, Field(ge=1)] = 1
    dcp: Annotated[int, Field(ge=1)] = 1  # decode context parallel size
    ep: bool = False  # experts are spread over tp x dp ranks
    mega_moe: bool = False  # sequence-parallel MoE even without data parallelism (vLLM)
    partition: Annotated[tuple[int, ...], Field(strict=False)] = ()  # layers by stage; empty: as the engine does
    preference: Annotated[int, Field(ge=1)]
    why: str
    max_model_len: Annotated[int, Field(ge=16)]  # tokens, unless cluster.yml says otherwise
    max_num_seqs: Annotated[int, Field(ge=1)]  # sequences at once, unless cluster.yml says otherwise
    max_batched: Annotated[int, Field(ge=1)] = 8192  # tokens of one step
    sets: Texts = ()
    argv: Texts = ()
    argv_head: Texts = ()
    argv_worker: Texts = ()
    env: dict[str, str] = Field(default_factory=dict)  # variables of every rank
    draft: str = ""  # name of the model's draft that this layout speculates with
    memory: MemorySettings | None = None  # none: memory is not planned for this layout
    measured: Annotated[tuple[Measured, ...], Field(strict=False)] = ()  # figures that the plan is held against
    verdict: Verdict  # who has run exactly this


class PortRule(Strict):
    """A listening port. `port` is a number, a template of one ({port}, {master_port}, {rendezvous}), or `{...}+1`."""

    port: str
    ranks: Literal["head", "workers", "all"]  # whose nodes listen
    reached_by: Literal["clients", "nodes"]  # who must get through to it
    purpose: str  # what listens
    several_nodes_only: bool = False  # not there when one node holds an engine
    data_parallel_only: bool = False  # not there without data parallelism
    source: Source  # who says so


class RandomPorts(Strict):
    """Ports that the engine picks at run time. `range` is `ephemeral` (the kernel's) or `22000-29999`."""

    range: Annotated[str, Field(pattern=r"^(ephemeral|\d+-\d+)$")]
    per_gpu: Annotated[int, Field(ge=0)]  # so many for each GPU of a node
    per_node: Annotated[int, Field(ge=0)] = 0  # so many more for each node
    purpose: str  # what they are for
    several_nodes_only: bool = False  # not there when one node holds an engine
    source: Source  # who says so


class Timeouts(Strict):
    """Seconds. `load_margin` multiplies the forecast load time into the ready limit, never below `engine_ready`."""

    engine_ready: Amount
    canary: Amount  # for one completion when the API listens
    gang_stop: Amount  # for the end of a rank that is asked to stop
    load_margin: Annotated[float, Field(ge=1)] = 3.0


class Engine(Strict):
    """One serving engine. `family` is its dialect: flags, memory rules and process names."""

    name: Name  # the file's name without .yml
    title: str  # for people
    family: Literal["vllm", "sglang", "trtllm"]
    default_version: str  # one of `versions`, taken when cluster.yml names none
    versions: Annotated[tuple[Version, ...], Field(strict=False, min_length=1)]  # that k3ctl can run
    flags: Annotated[tuple[Change, ...], Field(strict=False)] = ()  # of those flags that not every version has
    variables: Annotated[tuple[Change, ...], Field(strict=False)] = ()  # of those variables that not every version has
    program: Texts  # first items of every rank's argv; templates as in Layout
    sets: dict[Name, ArgumentSet] = Field(default_factory=dict)  # shared arguments by name
    layouts: Annotated[tuple[Layout, ...], Field(strict=False, min_length=1)]  # all that are documented
    ports: Annotated[tuple[PortRule, ...], Field(strict=False, min_length=1)]  # fixed ports
    random_ports: Annotated[tuple[RandomPorts, ...], Field(strict=False)] = ()  # ports picked at run time
    timeouts: Timeouts  # limits of every wait
    default_port: Annotated[int, Field(ge=1, le=65535)]  # the engine's own; recorded, k3ctl always names one


class RuntimeRecord(Strict):
    """What the builder of a bundle wrote beside it."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    name: str
    build_id: str
    archive: str
    sha256: Sha256
    bytes: Annotated[int, Field(gt=0)]
    unpacked_bytes: Annotated[int, Field(gt=0)]
    install_path: str


class Profiles(Strict):
    """Everything that is known, by kind and name."""

    gpus: dict[str, Gpu]
    platforms: dict[str, Platform]
    models: dict[str, Model]
    engines: dict[str, Engine]
