//! The messages of OTLP that Plimsoll sends, with the fields that it sets (opentelemetry-proto 1.10: metrics and
//! resource v1, profiles v1development). Fields have the protocol's names. A test reads the messages with the
//! protocol's own definitions.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 3")]
    pub(super) value: Option<Any>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Any {
    #[prost(string, tag = "1")]
    StringValue(String),
    #[prost(int64, tag = "3")]
    IntValue(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportMetrics {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) description: String,
    #[prost(string, tag = "3")]
    pub(super) unit: String,
    #[prost(oneof = "Data", tags = "5, 7")]
    pub(super) data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Gauge {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<Point>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Sum {
    #[prost(message, repeated, tag = "1")]
    pub(super) data_points: Vec<Point>,
    /// 2: cumulative.
    #[prost(int32, tag = "2")]
    pub(super) aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    pub(super) is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Point {
    #[prost(message, repeated, tag = "7")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(oneof = "Number", tags = "4, 6")]
    pub(super) value: Option<Number>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Number {
    #[prost(double, tag = "4")]
    AsDouble(f64),
    #[prost(sfixed64, tag = "6")]
    AsInt(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportProfiles {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    pub(super) dictionary: Option<Dictionary>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_profiles: Vec<ScopeProfiles>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) profiles: Vec<OneProfile>,
}

/// `Profile`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OneProfile {
    #[prost(message, optional, tag = "1")]
    pub(super) sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<StackSample>,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(bytes = "vec", tag = "7")]
    pub(super) profile_id: Vec<u8>,
}

/// Entry 0 of every table means none.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    pub(super) mapping_table: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    pub(super) location_table: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    pub(super) function_table: Vec<FunctionName>,
    #[prost(message, repeated, tag = "4")]
    pub(super) link_table: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    pub(super) string_table: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attribute_table: Vec<KeyValueAndUnit>,
    #[prost(message, repeated, tag = "7")]
    pub(super) stack_table: Vec<StackOf>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Link {}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ValueType {
    #[prost(int32, tag = "1")]
    pub(super) type_strindex: i32,
    #[prost(int32, tag = "2")]
    pub(super) unit_strindex: i32,
}

/// `Sample`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StackSample {
    #[prost(int32, tag = "1")]
    pub(super) stack_index: i32,
    #[prost(int32, repeated, tag = "2")]
    pub(super) attribute_indices: Vec<i32>,
    #[prost(int64, repeated, tag = "4")]
    pub(super) values: Vec<i64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(super) memory_start: u64,
    #[prost(uint64, tag = "2")]
    pub(super) memory_limit: u64,
    #[prost(int32, tag = "4")]
    pub(super) filename_strindex: i32,
    #[prost(int32, repeated, tag = "5")]
    pub(super) attribute_indices: Vec<i32>,
}

/// `Stack`: innermost first.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct StackOf {
    #[prost(int32, repeated, tag = "1")]
    pub(super) location_indices: Vec<i32>,
}

#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub(super) struct Location {
    #[prost(int32, tag = "1")]
    pub(super) mapping_index: i32,
    #[prost(uint64, tag = "2")]
    pub(super) address: u64,
    /// Inlined functions first.
    #[prost(message, repeated, tag = "3")]
    pub(super) lines: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(super) struct Line {
    #[prost(int32, tag = "1")]
    pub(super) function_index: i32,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

/// `Function`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(super) struct FunctionName {
    #[prost(int32, tag = "1")]
    pub(super) name_strindex: i32,
    #[prost(int32, tag = "2")]
    pub(super) system_name_strindex: i32,
    #[prost(int32, tag = "3")]
    pub(super) filename_strindex: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValueAndUnit {
    #[prost(int32, tag = "1")]
    pub(super) key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

/// The answer to either export: fields 1 and 2 are the same in both.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    /// Rejected data points or profiles.
    #[prost(int64, tag = "1")]
    pub(super) rejected: i64,
}
