//! Writes protobuf messages field by field (<https://protobuf.dev/programming-guides/encoding/>). Generated types would copy
//! each text of a span twice and add a dozen crates to the build.

/// A message, or a part of one.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

/// How the bytes of a field are read.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    LengthDelimited = 2,
    Fixed32 = 5,
}

impl Message {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Writes text, bytes or an encoded message.
    pub(crate) fn bytes(&mut self, number: u32, content: &[u8]) {
        self.key(number, Wire::LengthDelimited);
        self.varint(content.len() as u64);
        self.0.extend_from_slice(content);
    }

    /// Writes a message that `write` fills.
    pub(crate) fn message(&mut self, number: u32, write: impl FnOnce(&mut Self)) {
        self.key(number, Wire::LengthDelimited);
        // Most messages are shorter than 128 bytes: one byte for the length. Longer ones are moved.
        let length_at = self.0.len();
        self.0.push(0);
        write(self);
        let length = self.0.len() - length_at - 1;
        match u8::try_from(length) {
            Ok(short) if short < CONTINUES => self.0[length_at] = short,
            _ => {
                let mut head = Self::default();
                head.varint(length as u64);
                self.0.splice(length_at..=length_at, head.0);
            }
        }
    }

    /// Writes a number, flag or member of an enumeration.
    pub(crate) fn number(&mut self, number: u32, value: u64) {
        self.key(number, Wire::Varint);
        self.varint(value);
    }

    pub(crate) fn fixed64(&mut self, number: u32, value: u64) {
        self.key(number, Wire::Fixed64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn fixed32(&mut self, number: u32, value: u32) {
        self.key(number, Wire::Fixed32);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a repeated field of 64-bit numbers.
    pub(crate) fn packed64(&mut self, number: u32, values: impl ExactSizeIterator<Item = u64>) {
        self.key(number, Wire::LengthDelimited);
        self.varint(values.len() as u64 * 8);
        values.for_each(|value| self.0.extend_from_slice(&value.to_le_bytes()));
    }

    fn key(&mut self, number: u32, wire: Wire) {
        self.varint(u64::from(number) << 3 | wire as u64);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(low_bits(value) | CONTINUES);
            value >>= 7;
        }
        self.0.push(low_bits(value));
    }
}

/// The bit of a varint's byte that tells that another byte follows.
const CONTINUES: u8 = 0x80;

/// Returns the seven bits that a varint's next byte holds.
fn low_bits(value: u64) -> u8 {
    let [lowest, ..] = value.to_le_bytes();
    lowest & !CONTINUES
}
