"""The fields that a Triton ``config.pbtxt`` may have, for protobuf's text parser.

Only names, types and enum values: the text form carries no field numbers, so the numbers here are our own.
Written as ``name type`` pairs; ``*`` marks a repeated field. What is refused is here too: only then can it be
told from a misspelt field.
"""

from functools import lru_cache
from typing import Any

_TYPES = (
    "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 TYPE_INT32 "
    "TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16"
)

_ENUMS = {
    "DataType": _TYPES,
    "Kind": "KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL",
    "SecondaryKind": "KIND_NVDLA",
    "Format": "FORMAT_NONE FORMAT_NHWC FORMAT_NCHW",
    "Priority": "PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN",
    "TimeoutAction": "REJECT DELAY",
    "BatchInputKind": """BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT
        BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO BATCH_MAX_ELEMENT_COUNT_AS_SHAPE BATCH_ITEM_SHAPE
        BATCH_ITEM_SHAPE_FLATTEN""",
    "BatchOutputKind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
    "ControlKind": """CONTROL_SEQUENCE_START CONTROL_SEQUENCE_READY CONTROL_SEQUENCE_END
        CONTROL_SEQUENCE_CORRID""",
}

_MESSAGES = {
    "Config": """
        name string, platform string, backend string, runtime string, version_policy VersionPolicy,
        max_batch_size int32, input Input*, output Output*, batch_input BatchInput*,
        batch_output BatchOutput*, optimization Optimization, dynamic_batching DynamicBatching,
        sequence_batching Sequence, ensemble_scheduling Ensemble, instance_group InstanceGroup*,
        default_model_filename string, cc_model_filenames Text*, metric_tags Text*, parameters Parameter*,
        model_warmup Warmup*, model_operations Operations, model_transaction_policy TransactionPolicy,
        model_repository_agents Agents, response_cache ResponseCache, model_metrics Metrics""",
    "Empty": "",
    "Text": "key string, value string",
    "VersionPolicy": "latest Latest, all Empty, specific Specific",
    "Latest": "num_versions uint32",
    "Specific": "versions int64*",
    "Reshape": "shape int64*",
    "Input": """name string, data_type DataType, format Format, dims int64*, reshape Reshape,
        is_shape_tensor bool, allow_ragged_batch bool, optional bool, is_non_linear_format_io bool""",
    "Output": """name string, data_type DataType, dims int64*, reshape Reshape, label_filename string,
        is_shape_tensor bool, is_non_linear_format_io bool""",
    "InstanceGroup": """name string, kind Kind, count int32, rate_limiter RateLimiter, gpus int32*,
        secondary_devices SecondaryDevice*, profile string*, passive bool, host_policy string""",
    "RateLimiter": "resources Resource*, priority uint32",
    "Resource": "name string, global bool, count uint32",
    "SecondaryDevice": "kind SecondaryKind, device_id int64",
    "DynamicBatching": """preferred_batch_size int32*, max_queue_delay_microseconds uint64,
        preserve_ordering bool, priority_levels uint64, default_priority_level uint64,
        default_queue_policy QueuePolicy, priority_queue_policy PriorityQueuePolicy*""",
    "QueuePolicy": """timeout_action TimeoutAction, default_timeout_microseconds uint64,
        allow_timeout_override bool, max_queue_size uint32""",
    "PriorityQueuePolicy": "key uint64, value QueuePolicy",
    "Optimization": """graph Graph, priority Priority, cuda Cuda, execution_accelerators Accelerators,
        input_pinned_memory Enable, output_pinned_memory Enable, gather_kernel_buffer_threshold uint32,
        eager_batching bool""",
    "Graph": "level int32",
    "Cuda": "graphs bool, busy_wait_events bool, graph_spec GraphSpec*, output_copy_stream bool",
    "GraphSpec": "batch_size int32, input GraphInput*, graph_lower_bound GraphLowerBound",
    "GraphLowerBound": "batch_size int32, input GraphInput*",
    "GraphInput": "key string, value GraphShape",
    "GraphShape": "dim int64*",
    "Accelerators": "gpu_execution_accelerator Accelerator*, cpu_execution_accelerator Accelerator*",
    "Accelerator": "name string, parameters Text*",
    "Enable": "enable bool",
    "Parameter": "key string, value ParameterValue",
    "ParameterValue": "string_value string",
    "Warmup": "name string, batch_size uint32, inputs WarmupEntry*, count uint32",
    "WarmupEntry": "key string, value WarmupInput",
    "WarmupInput": """data_type DataType, dims int64*, zero_data bool, random_data bool,
        input_data_file string""",
    "TransactionPolicy": "decoupled bool",
    "ResponseCache": "enable bool",
    "Metrics": "metric_control MetricControl*",
    "MetricControl": "metric_identifier MetricIdentifier, histogram_options Histogram",
    "MetricIdentifier": "family string",
    "Histogram": "buckets double*",
    # Refused, all that follows.
    "BatchInput": "kind BatchInputKind, target_name string*, data_type DataType, source_input string*",
    "BatchOutput": "target_name string*, kind BatchOutputKind, source_input string*",
    "Operations": "op_library_filename string*",
    "Agents": "agents Agent*",
    "Agent": "name string, parameters Text*",
    "Ensemble": "step Step*, max_inflight_requests uint32",
    "Step": """model_name string, model_version int64, input_map Text*, output_map Text*,
        model_namespace string""",
    "Sequence": """direct Direct, oldest Oldest, max_sequence_idle_microseconds uint64,
        control_input ControlInput*, state State*, iterative_sequence bool""",
    "Direct": "max_queue_delay_microseconds uint64, minimum_slot_utilization double",
    "Oldest": """max_candidate_sequences int32, preferred_batch_size int32*,
        max_queue_delay_microseconds uint64, preserve_ordering bool""",
    "ControlInput": "name string, control Control*",
    "Control": """kind ControlKind, int32_false_true int32*, fp32_false_true double*, data_type DataType,
        bool_false_true bool*""",
    "State": """input_name string, output_name string, data_type DataType, dims int64*,
        initial_state InitialState*, use_same_buffer_for_input_output bool, use_growable_memory bool""",
    "InitialState": "data_type DataType, dims int64*, zero_data bool, data_file string, name string",
}

_PACKAGE = "appliance.triton"


@lru_cache(maxsize=1)
def config_class() -> type[Any]:
    """The message class of a whole ``config.pbtxt``. Imports protobuf on the first call."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    scalars = {
        name: getattr(field, f"TYPE_{name.upper()}")
        for name in ("string", "bool", "int32", "int64", "uint32", "uint64", "double")
    }
    file = descriptor_pb2.FileDescriptorProto(name="appliance/triton.proto", package=_PACKAGE, syntax="proto2")
    for name, values in _ENUMS.items():
        # Values are scoped like their enum's siblings, so each enum gets a message of its own around it.
        holder = file.message_type.add(name=f"{name}Holder")
        enum = holder.enum_type.add(name=name)
        for number, value in enumerate(values.split()):
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, pair in enumerate(filter(None, map(str.strip, fields.split(","))), start=1):
            label, kind = pair.split()
            many = kind.endswith("*")
            kind = kind.rstrip("*")
            added = message.field.add(
                name=label, number=number, label=field.LABEL_REPEATED if many else field.LABEL_OPTIONAL
            )
            if kind in scalars:
                added.type = scalars[kind]
            elif kind in _ENUMS:
                added.type, added.type_name = field.TYPE_ENUM, f".{_PACKAGE}.{kind}Holder.{kind}"
            else:
                added.type, added.type_name = field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()  # its own: the default pool may hold Triton's real schema
    pool.Add(file)
    found: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Config"))
    return found
