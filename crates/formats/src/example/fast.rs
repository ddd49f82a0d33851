//! Examples as TensorFlow's quick parser reads them, which is what `ParseExample` and
//! `ParseSequenceExample` answer with. It takes some bytes that protobuf refuses (a length that
//! runs past the end is cut, what follows a packed list is ignored) and refuses some that protobuf
//! takes (a map entry without a value), so it is a reader of its own. Nothing is copied:
//! a feature is a window on the message, and values go where the caller wants them.

use super::FeatureKind;

/// An encoded feature.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawFeature<'a>(pub &'a [u8]);

/// A feature whose first field is none of the three lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsupportedKind;

/// What a map of features holds: names and encoded features in the order of the message.
pub type Entries<'a> = Vec<(&'a [u8], RawFeature<'a>)>;

/// Receives the values of a feature.
pub trait Sink<'a> {
    /// Another `f32`.
    fn float(&mut self, value: f32);
    /// Several `f32`, as they lie in the message.
    fn packed(&mut self, values: &[[u8; 4]]) {
        values
            .iter()
            .for_each(|v| self.float(f32::from_le_bytes(*v)));
    }
    /// Another `i64`.
    fn int(&mut self, value: i64);
    /// Another byte string.
    fn bytes(&mut self, value: &'a [u8]);
}

/// The features of an example, or of several whose bytes follow one another; `None` if it is none.
pub fn read_example(data: &[u8]) -> Option<Entries<'_>> {
    let mut stream = Stream::new(data);
    let mut entries = Entries::new();
    while !stream.at_end() {
        if stream.tag(delimited(1)) {
            stream.map(Order::Any, |name, value| {
                entries.push((name, RawFeature(value)));
            })?;
        } else {
            stream.skip_field()?;
        }
    }
    Some(entries)
}

/// Calls `each` with every entry of a sequence example: whether it belongs to the feature lists
/// rather than the context, its name and its encoded value. `None` if the bytes are none.
pub fn read_sequence_example<'a>(
    data: &'a [u8],
    mut each: impl FnMut(bool, &'a [u8], &'a [u8]),
) -> Option<()> {
    let mut stream = Stream::new(data);
    while !stream.at_end() {
        if stream.tag(delimited(1)) {
            stream.map(Order::NameFirst, |name, value| each(false, name, value))?;
        } else if stream.tag(delimited(2)) {
            stream.map(Order::NameFirst, |name, value| each(true, name, value))?;
        } else {
            stream.skip_field()?;
        }
    }
    Some(())
}

impl<'a> RawFeature<'a> {
    /// Which list comes first, `None` if the feature is empty.
    pub fn kind(self) -> Result<Option<FeatureKind>, UnsupportedKind> {
        match self.0.first() {
            None => Ok(None),
            Some(&tag) => kind_of(tag).map(Some).ok_or(UnsupportedKind),
        }
    }

    /// Hands the values of the feature, which is of this kind, to `sink`. `None` if its list is
    /// malformed; some values may have been handed over by then.
    pub fn read(self, kind: FeatureKind, sink: &mut impl Sink<'a>) -> Option<()> {
        let mut stream = Stream::new(self.0);
        stream.tag(tag_of(kind)).then_some(())?;
        stream.list(kind, Odd::Ignored, sink)
    }
}

/// One row of a feature list, or a context feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowError {
    /// The bytes are no feature.
    Malformed,
    /// It holds another kind of list, or a malformed one.
    Kind,
}

/// Hands the values of a context feature to `sink`, or says that it is not of this kind.
pub fn read_context<'a>(data: &'a [u8], kind: FeatureKind, sink: &mut impl Sink<'a>) -> Option<()> {
    if data.is_empty() {
        return Some(());
    }
    Stream::new(data).feature(kind, sink)
}

/// Hands the values of a feature list to `sink` and calls `row` after each of its features.
pub fn read_feature_list<'a, S: Sink<'a>>(
    data: &'a [u8],
    kind: FeatureKind,
    sink: &mut S,
    mut row: impl FnMut(&mut S),
) -> Result<(), RowError> {
    let mut stream = Stream::new(data);
    while !stream.at_end() {
        if !stream.tag(delimited(1)) {
            return Err(RowError::Malformed);
        }
        let length = stream.varint32().ok_or(RowError::Malformed)?;
        match length {
            0 => {}
            1 => return Err(RowError::Malformed),
            2 => {
                let empty = stream.tag(tag_of(kind)) && stream.varint32() == Some(0);
                empty.then_some(()).ok_or(RowError::Kind)?;
            }
            _ => {
                let outer = stream.push_limit(length);
                stream.feature(kind, sink).ok_or(RowError::Kind)?;
                stream.end = outer;
            }
        }
        row(sink);
    }
    Ok(())
}

const fn delimited(field: u8) -> u8 {
    field << 3 | 2
}

fn kind_of(tag: u8) -> Option<FeatureKind> {
    const BYTES: u8 = delimited(1);
    const FLOAT: u8 = delimited(2);
    const INT64: u8 = delimited(3);
    match tag {
        BYTES => Some(FeatureKind::Bytes),
        FLOAT => Some(FeatureKind::Float),
        INT64 => Some(FeatureKind::Int64),
        _ => None,
    }
}

fn tag_of(kind: FeatureKind) -> u8 {
    delimited(match kind {
        FeatureKind::Bytes => 1,
        FeatureKind::Float => 2,
        FeatureKind::Int64 => 3,
    })
}

/// What to do with bytes at the end of a packed list of floats that make no whole one.
#[derive(Clone, Copy, PartialEq)]
enum Odd {
    Ignored,
    Refused,
}

/// Whether the value of a map entry may come before its name.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Any,
    NameFirst,
}

/// Bytes with a moving limit, as protobuf's `CodedInputStream` has one.
struct Stream<'a> {
    data: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Stream<'a> {
    fn new(data: &'a [u8]) -> Stream<'a> {
        Stream {
            data,
            at: 0,
            end: data.len(),
        }
    }

    fn at_end(&self) -> bool {
        self.at >= self.end
    }

    fn left(&self) -> usize {
        self.end.saturating_sub(self.at)
    }

    fn peek(&self) -> Option<u8> {
        let byte = self.data.get(self.at).copied();
        byte.filter(|_| !self.at_end())
    }

    /// Passes over `tag` if it is next.
    fn tag(&mut self, tag: u8) -> bool {
        let found = self.peek() == Some(tag);
        self.at += usize::from(found);
        found
    }

    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        if n > self.left() {
            return None;
        }
        let taken = self.data.get(self.at..self.at + n)?;
        self.at += n;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn varint64(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.peek()?;
            self.at += 1;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// A varint of which protobuf keeps 32 bits.
    fn varint32(&mut self) -> Option<u32> {
        self.varint64().map(|v| v as u32)
    }

    /// Narrows the limit to the next `n` bytes if they are there, and returns the limit that was.
    fn push_limit(&mut self, n: u32) -> usize {
        let outer = self.end;
        if i32::try_from(n).is_ok() && (n as usize) < self.left() {
            self.end = self.at + n as usize;
        }
        outer
    }

    /// A byte string with its length before it.
    fn string(&mut self) -> Option<&'a [u8]> {
        let n = self.varint32()?;
        self.take(n as usize)
    }

    /// The entries of a message that is one map: a name and a value, nothing else.
    fn map(&mut self, order: Order, mut each: impl FnMut(&'a [u8], &'a [u8])) -> Option<()> {
        let length = self.varint32()?;
        let outer = self.push_limit(length);
        while !self.at_end() {
            self.tag(delimited(1)).then_some(())?;
            let length = self.varint32()?;
            let map = self.push_limit(length);
            let value_first = order == Order::Any && self.peek() == Some(delimited(2));
            let tags = if value_first { [2, 1] } else { [1, 2] };
            self.tag(delimited(tags[0])).then_some(())?;
            let first = self.string()?;
            self.tag(delimited(tags[1])).then_some(())?;
            let second = self.string()?;
            let (name, value) = match value_first {
                true => (second, first),
                false => (first, second),
            };
            self.at_end().then_some(())?;
            self.end = map;
            each(name, value);
        }
        self.end = outer;
        Some(())
    }

    /// Passes over a field that is not known.
    fn skip_field(&mut self) -> Option<()> {
        match self.varint32().unwrap_or(0) & 7 {
            0 => self.varint32().map(drop),
            1 => self.take(8).map(drop),
            2 => {
                let n = self.varint32()? as usize;
                self.at += n.min(self.left());
                Some(())
            }
            5 => self.take(4).map(drop),
            _ => None,
        }
    }

    /// A feature with its kind before it.
    fn feature(&mut self, kind: FeatureKind, sink: &mut impl Sink<'a>) -> Option<()> {
        self.tag(tag_of(kind)).then_some(())?;
        self.list(kind, Odd::Refused, sink)
    }

    /// The list of a feature, its length first.
    fn list(&mut self, kind: FeatureKind, odd: Odd, sink: &mut impl Sink<'a>) -> Option<()> {
        let length = self.varint32()?;
        let outer = self.push_limit(length);
        // An empty list of a sequence leaves the limit alone; elsewhere nothing follows it.
        if length > 0 || odd == Odd::Ignored {
            match kind {
                FeatureKind::Bytes => self.byte_values(sink)?,
                FeatureKind::Float => self.float_values(odd, sink)?,
                FeatureKind::Int64 => self.int_values(sink)?,
            }
        }
        self.end = outer;
        Some(())
    }

    fn byte_values(&mut self, sink: &mut impl Sink<'a>) -> Option<()> {
        while !self.at_end() {
            self.tag(delimited(1)).then_some(())?;
            sink.bytes(self.string()?);
        }
        Some(())
    }

    fn float_values(&mut self, odd: Odd, sink: &mut impl Sink<'a>) -> Option<()> {
        const FIXED: u8 = 1 << 3 | 5;
        if self.at_end() {
            return Some(());
        }
        if self.tag(delimited(1)) {
            let length = self.varint32()?;
            let packed = match odd {
                Odd::Ignored => self.take(length as usize)?,
                Odd::Refused => {
                    let n = (length as usize).min(self.left());
                    self.take(n)?
                }
            };
            let (values, rest) = packed.as_chunks::<4>();
            sink.packed(values);
            return (odd == Odd::Ignored || rest.is_empty()).then_some(());
        }
        (self.peek()? == FIXED).then_some(())?;
        while !self.at_end() {
            self.tag(FIXED).then_some(())?;
            sink.float(f32::from_le_bytes(self.array()?));
        }
        Some(())
    }

    fn int_values(&mut self, sink: &mut impl Sink<'a>) -> Option<()> {
        const VARINT: u8 = 1 << 3;
        if self.at_end() {
            return Some(());
        }
        if self.tag(delimited(1)) {
            let length = self.varint32()?;
            let list = self.push_limit(length);
            while !self.at_end() {
                sink.int(self.varint64()? as i64);
            }
            self.end = list;
            return Some(());
        }
        (self.peek()? == VARINT).then_some(())?;
        while !self.at_end() {
            self.tag(VARINT).then_some(())?;
            sink.int(self.varint64()? as i64);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, Debug, PartialEq)]
    struct Seen(Vec<f32>, Vec<i64>, Vec<Vec<u8>>);

    impl<'a> Sink<'a> for Seen {
        fn float(&mut self, value: f32) {
            self.0.push(value);
        }
        fn int(&mut self, value: i64) {
            self.1.push(value);
        }
        fn bytes(&mut self, value: &'a [u8]) {
            self.2.push(value.to_vec());
        }
    }

    fn field(number: u8, data: &[u8]) -> Vec<u8> {
        let mut out = vec![delimited(number)];
        crate::coding::put_varint(&mut out, data.len() as u64);
        out.extend(data);
        out
    }

    fn ints(feature: &[u8]) -> Option<Vec<i64>> {
        let mut seen = Seen::default();
        RawFeature(feature).read(FeatureKind::Int64, &mut seen)?;
        Some(seen.1)
    }

    fn floats(feature: &[u8]) -> Option<usize> {
        let mut seen = Seen::default();
        RawFeature(feature).read(FeatureKind::Float, &mut seen)?;
        Some(seen.0.len())
    }

    #[test]
    fn examples_give_their_features_in_order() {
        let entry = |name: &[u8], value: &[u8]| {
            field(
                1,
                &[field(1, name), field(2, &field(3, &field(1, value)))].concat(),
            )
        };
        let one = field(1, &[entry(b"a", &[1]), entry(b"b", &[2, 3])].concat());
        let two = [
            one.clone(),
            field(9, b"unknown"),
            field(1, &entry(b"a", &[9])),
        ]
        .concat();
        let entries = read_example(&two).unwrap();
        let names: Vec<&[u8]> = entries.iter().map(|e| e.0).collect();
        assert_eq!(names, [b"a", b"b", b"a"]);
        assert_eq!(ints(entries[1].1.0), Some(vec![2, 3]));
        // The value before the name is taken, but not in a sequence; a name alone never is.
        let turned = field(1, &field(1, &[field(2, &[]), field(1, b"a")].concat()));
        assert_eq!(read_example(&turned).unwrap().len(), 1);
        assert!(read_sequence_example(&turned, |_, _, _| ()).is_none());
        assert!(read_example(&field(1, &field(1, &field(1, b"a")))).is_none());
        assert!(read_example(&one[..one.len() - 1]).is_none());
    }

    #[test]
    fn lists_follow_the_quick_parser() {
        assert_eq!(ints(&field(3, &[8, 5, 8, 6])), Some(vec![5, 6]));
        let packed_twice = [field(1, &[5]), field(1, &[6])].concat();
        assert_eq!(ints(&field(3, &packed_twice)), Some(vec![5]));
        assert_eq!(ints(&field(3, &[])), Some(vec![]));
        assert_eq!(ints(&field(3, &[8])), None);
        assert_eq!(ints(&field(3, &[0x11])), None);
        assert_eq!(floats(&field(2, &field(1, &[0; 9]))), Some(2));
        assert_eq!(floats(&field(2, &[delimited(1), 8, 0, 0])), None);
        assert_eq!(RawFeature(&[]).kind(), Ok(None));
        assert_eq!(RawFeature(&[0x22]).kind(), Err(UnsupportedKind));
    }

    #[test]
    fn feature_lists_give_their_rows() {
        let rows = [
            field(1, &field(3, &field(1, &[7, 8]))),
            field(1, &[]),
            field(1, &field(3, &[])),
        ]
        .concat();
        let mut ends = Vec::new();
        let mut seen = Seen::default();
        let read = read_feature_list(&rows, FeatureKind::Int64, &mut seen, |s| {
            ends.push(s.1.len())
        });
        assert_eq!((read, ends), (Ok(()), vec![2, 2, 2]));
        let wrong = |data: &[u8]| {
            let mut seen = Seen::default();
            read_feature_list(data, FeatureKind::Float, &mut seen, |_| ())
        };
        assert_eq!(wrong(&rows), Err(RowError::Kind));
        assert_eq!(wrong(&field(1, &[0])), Err(RowError::Malformed));
        assert_eq!(wrong(&[0x11]), Err(RowError::Malformed));
    }

    #[test]
    fn damaged_bytes_never_panic() {
        let mut noise = crate::testing::Noise(3);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..noise.below(24))
                .map(|_| noise.next() as u8 % 32)
                .collect();
            let mut seen = Seen::default();
            let _ = read_example(&bytes);
            let _ = read_sequence_example(&bytes, |_, _, _| ());
            for kind in [FeatureKind::Bytes, FeatureKind::Float, FeatureKind::Int64] {
                let _ = RawFeature(&bytes).read(kind, &mut seen);
                let _ = read_feature_list(&bytes, kind, &mut seen, |_| ());
            }
        }
    }
}
