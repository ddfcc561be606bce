//! Spans in OTLP's protobuf
//! (<https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/trace/v1/trace.proto>), written
//! in one pass as they come: there are many, and messages of owned structs would cost more than all else that is done
//! for a span. The bytes are those that OpenTelemetry's own messages give.

#[cfg(test)]
mod tests;

use bytes::Bytes;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as WireKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use prost::encoding::{WireType, encode_varint, encoded_len_varint, message};

use super::encode::nanos;
use crate::spans::{Attribute, Span, SpanKind, Value};

/// Field `flags`, number 16: sampled, as `traceparent` says.
const SAMPLED: [u8; 6] = [0x85, 0x01, 1, 0, 0, 0];
/// The longest tag and length.
const MAX_HEAD: usize = 11;

/// Spans that are to go together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// What comes before the spans but for two lengths, which depend on them: the fields `resource` and `scope`.
    resource: Vec<u8>,
    scope: Vec<u8>,
    /// Room for what comes before, then the field `spans` of `ScopeSpans`: so that they are not moved to be sent.
    out: Vec<u8>,
    count: usize,
    /// The span that is being written: its length comes first.
    span: Vec<u8>,
}

impl Batch {
    /// No spans yet, of that resource and scope.
    pub(super) fn new(resource: &impl Message, scope: &impl Message) -> Self {
        let mut batch = Self::default();
        message::encode(1, resource, &mut batch.resource);
        message::encode(1, scope, &mut batch.scope);
        batch.clear(0);
        batch
    }

    pub(super) fn add(&mut self, span: &Span) {
        self.span.clear();
        write_span(&mut self.span, span);
        bytes(&mut self.out, 2, &self.span);
        self.count += 1;
    }

    /// How many spans there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// `ExportTraceServiceRequest` with these spans. There are none then.
    pub(super) fn request(&mut self) -> Bytes {
        let room = self.room();
        let scope_spans = self.scope.len() + self.out.len() - room;
        let mut before = Vec::with_capacity(room);
        head(&mut before, 1, self.resource.len() + field_len(scope_spans));
        before.extend_from_slice(&self.resource);
        head(&mut before, 2, scope_spans);
        before.extend_from_slice(&self.scope);
        let start = room - before.len();
        self.out[start..room].copy_from_slice(&before);
        // The next ones are as long as these, more or less.
        let out = self.clear(self.out.len());
        Bytes::from(out).slice(start..)
    }

    /// As much as may come before the spans: two tags and lengths, and what they are of.
    fn room(&self) -> usize {
        2 * MAX_HEAD + self.resource.len() + self.scope.len()
    }

    /// What is there, and nothing is from then on.
    fn clear(&mut self, capacity: usize) -> Vec<u8> {
        self.count = 0;
        let mut out = Vec::with_capacity(capacity);
        out.resize(self.room(), 0);
        std::mem::replace(&mut self.out, out)
    }
}

fn write_span(out: &mut Vec<u8>, span: &Span) {
    bytes(out, 1, &span.trace.get().to_be_bytes());
    bytes(out, 2, &span.id.get().to_be_bytes());
    if let Some(parent) = span.parent {
        bytes(out, 4, &parent.get().to_be_bytes());
    }
    text(out, 5, &span.name);
    let kind = match span.kind {
        SpanKind::Client => WireKind::Client,
        SpanKind::Internal => WireKind::Internal,
    };
    number(out, 6, i64::from(i32::from(kind)));
    fixed(out, 7, nanos(span.start));
    fixed(out, 8, nanos(span.end));
    for attribute in &span.attributes {
        write_attribute(out, attribute);
    }
    if let Some(said) = &span.failure {
        head(out, 15, text_len(said) + 2);
        text(out, 2, said);
        number(out, 3, i64::from(i32::from(StatusCode::Error)));
    }
    out.extend_from_slice(&SAMPLED);
}

/// Field `attributes`: `KeyValue` with an `AnyValue`, of which the one member that it has is written even when empty.
fn write_attribute(out: &mut Vec<u8>, Attribute { key, value }: &Attribute) {
    let value_len = match value {
        Value::Text(text) => field_len(text.len()),
        Value::Texts(texts) => field_len(texts_len(texts)),
        Value::Number(number) => 1 + encoded_len_varint(number.cast_unsigned()),
        Value::Flag(_) => 2,
    };
    head(out, 9, text_len(key) + field_len(value_len));
    text(out, 1, key);
    head(out, 2, value_len);
    match value {
        Value::Text(text) => bytes(out, 1, text.as_bytes()),
        Value::Texts(texts) => {
            head(out, 5, texts_len(texts));
            for text in texts {
                head(out, 1, field_len(text.len()));
                bytes(out, 1, text.as_bytes());
            }
        }
        Value::Number(value) => number(out, 3, *value),
        Value::Flag(flag) => number(out, 2, i64::from(*flag)),
    }
}

/// The length of `ArrayValue`.
fn texts_len(texts: &[String]) -> usize {
    texts.iter().map(|text| field_len(field_len(text.len()))).sum()
}

/// The length of a field with so many bytes in it.
fn field_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

fn text_len(text: &str) -> usize {
    if text.is_empty() { 0 } else { field_len(text.len()) }
}

/// What comes before the bytes of a field. Numbers of fields are below 16 here, so that a tag is one byte.
fn head(out: &mut Vec<u8>, field: u8, len: usize) {
    varint(out, tag(field, WireType::LengthDelimited), len as u64);
}

/// A tag and a number, which is short nearly always.
fn varint(out: &mut Vec<u8>, tag: u8, number: u64) {
    match u8::try_from(number) {
        Ok(short @ 0..0x80) => out.extend_from_slice(&[tag, short]),
        _ => {
            out.push(tag);
            encode_varint(number, out);
        }
    }
}

fn bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    head(out, field, bytes.len());
    out.extend_from_slice(bytes);
}

/// A text that is not written when it is empty, as it is with fields of no `oneof`.
fn text(out: &mut Vec<u8>, field: u8, text: &str) {
    if !text.is_empty() {
        bytes(out, field, text.as_bytes());
    }
}

fn number(out: &mut Vec<u8>, field: u8, number: i64) {
    varint(out, tag(field, WireType::Varint), number.cast_unsigned());
}

/// Eight bytes that are not written when they are zero.
fn fixed(out: &mut Vec<u8>, field: u8, number: u64) {
    if number != 0 {
        out.push(tag(field, WireType::SixtyFourBit));
        out.extend_from_slice(&number.to_le_bytes());
    }
}

const fn tag(field: u8, wire: WireType) -> u8 {
    field << 3 | wire as u8
}
