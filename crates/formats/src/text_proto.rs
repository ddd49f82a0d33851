//! Protobuf's text format for graphs (`graph.pbtxt`, `saved_model.pbtxt`), turned into the binary
//! form that `wire` decodes. Only messages that a table names are known; unknown fields of known
//! messages are skipped, as their binary form would be. Depth and size are bounded by the caller's
//! text: nothing is allocated beyond it.

use crate::coding::put_varint;
use downpour_graph::{Result, Status};
use downpour_tensor::DType;

/// How a field's value is written.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Varint,
    Bool,
    Float,
    Double,
    Bytes,
    /// `DT_…` or a number.
    DType,
    Message(&'static str),
    /// `key:` a string, `value:` one of these.
    Map(&'static Form),
    /// As `Map`, with numbers as keys.
    NumberMap(&'static Form),
}

type Fields = &'static [(&'static str, u32, Form)];

const ATTR: Form = Form::Message("AttrValue");
const STRING: Form = Form::Bytes;
const INFO: Form = Form::Message("TensorInfo");
const SIGNATURE: Form = Form::Message("SignatureDef");

/// Fields of the messages that a graph is made of, by TensorFlow's names and numbers.
fn fields(message: &str) -> Fields {
    use Form::*;
    match message {
        "GraphDef" => &[
            ("node", 1, Message("NodeDef")),
            ("library", 2, Message("FunctionDefLibrary")),
            ("version", 3, Varint),
            ("versions", 4, Message("VersionDef")),
        ],
        "VersionDef" => &[
            ("producer", 1, Varint),
            ("min_consumer", 2, Varint),
            ("bad_consumers", 3, Varint),
        ],
        "NodeDef" => &[
            ("name", 1, Bytes),
            ("op", 2, Bytes),
            ("input", 3, Bytes),
            ("device", 4, Bytes),
            ("attr", 5, Map(&ATTR)),
        ],
        "AttrValue" => &[
            ("list", 1, Message("ListValue")),
            ("s", 2, Bytes),
            ("i", 3, Varint),
            ("f", 4, Float),
            ("b", 5, Bool),
            ("type", 6, DType),
            ("shape", 7, Message("TensorShapeProto")),
            ("tensor", 8, Message("TensorProto")),
            ("placeholder", 9, Bytes),
            ("func", 10, Message("NameAttrList")),
        ],
        "ListValue" => &[
            ("s", 2, Bytes),
            ("i", 3, Varint),
            ("f", 4, Float),
            ("b", 5, Bool),
            ("type", 6, DType),
            ("shape", 7, Message("TensorShapeProto")),
            ("tensor", 8, Message("TensorProto")),
            ("func", 9, Message("NameAttrList")),
        ],
        "NameAttrList" => &[("name", 1, Bytes), ("attr", 2, Map(&ATTR))],
        "TensorShapeProto" => &[("dim", 2, Message("Dim")), ("unknown_rank", 3, Bool)],
        "Dim" => &[("size", 1, Varint), ("name", 2, Bytes)],
        "TensorProto" => &[
            ("dtype", 1, DType),
            ("tensor_shape", 2, Message("TensorShapeProto")),
            ("version_number", 3, Varint),
            ("tensor_content", 4, Bytes),
            ("float_val", 5, Float),
            ("double_val", 6, Double),
            ("int_val", 7, Varint),
            ("string_val", 8, Bytes),
            ("scomplex_val", 9, Float),
            ("int64_val", 10, Varint),
            ("bool_val", 11, Bool),
            ("dcomplex_val", 12, Double),
            ("half_val", 13, Varint),
            ("uint32_val", 16, Varint),
            ("uint64_val", 17, Varint),
        ],
        "FunctionDefLibrary" => &[
            ("function", 1, Message("FunctionDef")),
            ("gradient", 2, Message("GradientDef")),
        ],
        "GradientDef" => &[("function_name", 1, Bytes), ("gradient_func", 2, Bytes)],
        "FunctionDef" => &[
            ("signature", 1, Message("OpDef")),
            ("node_def", 3, Message("NodeDef")),
            ("ret", 4, Map(&STRING)),
            ("attr", 5, Map(&ATTR)),
            ("control_ret", 6, Map(&STRING)),
            ("arg_attr", 7, NumberMap(&Message("ArgAttrs"))),
        ],
        "ArgAttrs" => &[("attr", 1, Map(&ATTR))],
        "OpDef" => &[
            ("name", 1, Bytes),
            ("input_arg", 2, Message("ArgDef")),
            ("output_arg", 3, Message("ArgDef")),
            ("attr", 4, Message("AttrDef")),
            ("is_aggregate", 16, Bool),
            ("is_stateful", 17, Bool),
            ("is_commutative", 18, Bool),
            ("control_output", 20, Bytes),
        ],
        "ArgDef" => &[
            ("name", 1, Bytes),
            ("type", 3, DType),
            ("type_attr", 4, Bytes),
            ("number_attr", 5, Bytes),
            ("type_list_attr", 6, Bytes),
            ("is_ref", 16, Bool),
        ],
        "AttrDef" => &[
            ("name", 1, Bytes),
            ("type", 2, Bytes),
            ("default_value", 3, ATTR),
            ("has_minimum", 5, Bool),
            ("minimum", 6, Varint),
            ("allowed_values", 7, ATTR),
        ],
        "MetaGraphDef" => &[
            ("meta_info_def", 1, Message("MetaInfoDef")),
            ("graph_def", 2, Message("GraphDef")),
            ("signature_def", 5, Map(&SIGNATURE)),
        ],
        "MetaInfoDef" => &[
            ("meta_graph_version", 1, Bytes),
            ("tags", 4, Bytes),
            ("tensorflow_version", 5, Bytes),
        ],
        "SignatureDef" => &[
            ("inputs", 1, Map(&INFO)),
            ("outputs", 2, Map(&INFO)),
            ("method_name", 3, Bytes),
        ],
        "TensorInfo" => &[
            ("name", 1, Bytes),
            ("dtype", 2, DType),
            ("tensor_shape", 3, Message("TensorShapeProto")),
        ],
        "SavedModel" => &[
            ("saved_model_schema_version", 1, Varint),
            ("meta_graphs", 2, Message("MetaGraphDef")),
        ],
        _ => &[],
    }
}

/// Messages inside messages that are followed; protobuf's own limit is a hundred.
const MAX_DEPTH: usize = 100;

/// The binary form of a message in text form.
pub(crate) fn to_binary(text: &str, message: &'static str) -> Result<Vec<u8>> {
    let mut parser = Parser {
        text,
        at: 0,
        depth: 0,
    };
    let mut out = Vec::new();
    parser.message(fields(message), None, &mut out)?;
    Ok(out)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn error(&self, what: &str) -> Status {
        let before = self.text.get(..self.at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        Status::invalid_argument(format!("line {line}: {what}"))
    }

    /// Skips blanks, comments and separators.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed =
                rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == ',' || c == ';');
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with('#') {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn take(&mut self, c: char) -> bool {
        self.skip();
        let found = self.rest().starts_with(c);
        self.at += if found { c.len_utf8() } else { 0 };
        found
    }

    fn word(&mut self) -> &'a str {
        self.skip();
        let rest = self.rest();
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    /// The fields of a message up to `close`, or to the end of the text.
    fn message(&mut self, fields: Fields, close: Option<char>, out: &mut Vec<u8>) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("messages are nested too deeply"));
        }
        loop {
            if close.is_some_and(|close| self.take(close)) {
                break;
            }
            self.skip();
            if self.rest().is_empty() {
                if close.is_some() {
                    return Err(self.error("the text ends inside a message"));
                }
                break;
            }
            let extension = self.take('[');
            let name = match extension {
                true => self.extension()?,
                false => self.word(),
            };
            if name.is_empty() {
                return Err(self.error("expected the name of a field"));
            }
            let known = fields.iter().find(|f| f.0 == name && !extension);
            let colon = self.take(':');
            match known {
                Some(&(_, number, form)) => self.values(number, form, out)?,
                None => self.ignore(colon)?,
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// `[type.googleapis.com/name]`, from behind the bracket.
    fn extension(&mut self) -> Result<&'a str> {
        let rest = self.rest();
        let end = rest.find(']').ok_or_else(|| self.error("'[' has no ']'"))?;
        self.at += end + 1;
        Ok(rest.get(..end).unwrap_or_default())
    }

    /// One value, or several in brackets.
    fn values(&mut self, number: u32, form: Form, out: &mut Vec<u8>) -> Result<()> {
        if !self.take('[') {
            return self.value(number, form, out);
        }
        while !self.take(']') {
            if self.rest().is_empty() {
                return Err(self.error("the text ends inside a list"));
            }
            self.value(number, form, out)?;
        }
        Ok(())
    }

    fn value(&mut self, number: u32, form: Form, out: &mut Vec<u8>) -> Result<()> {
        let tag = |wire: u32| u64::from(number << 3 | wire);
        match form {
            Form::Varint | Form::Bool | Form::DType => {
                let value = self.integer(form)?;
                put_varint(out, tag(0));
                put_varint(out, value);
            }
            Form::Float => {
                let value = self.float()? as f32;
                put_varint(out, tag(5));
                out.extend(value.to_le_bytes());
            }
            Form::Double => {
                let value = self.float()?;
                put_varint(out, tag(1));
                out.extend(value.to_le_bytes());
            }
            Form::Bytes => {
                let value = self.string()?;
                put_varint(out, tag(2));
                put_varint(out, value.len() as u64);
                out.extend(value);
            }
            Form::Message(message) => {
                let inner = self.nested(fields(message))?;
                put_varint(out, tag(2));
                put_varint(out, inner.len() as u64);
                out.extend(inner);
            }
            Form::Map(value) => {
                let entry = self.entry(Form::Bytes, *value)?;
                put_varint(out, tag(2));
                put_varint(out, entry.len() as u64);
                out.extend(entry);
            }
            Form::NumberMap(value) => {
                let entry = self.entry(Form::Varint, *value)?;
                put_varint(out, tag(2));
                put_varint(out, entry.len() as u64);
                out.extend(entry);
            }
        }
        Ok(())
    }

    fn open(&mut self) -> Result<char> {
        match (self.take('{'), self.take('<')) {
            (true, _) => Ok('}'),
            (_, true) => Ok('>'),
            _ => Err(self.error("expected '{'")),
        }
    }

    fn nested(&mut self, fields: Fields) -> Result<Vec<u8>> {
        let close = self.open()?;
        let mut inner = Vec::new();
        self.message(fields, Some(close), &mut inner)?;
        Ok(inner)
    }

    /// An entry of a map: `key` and `value`.
    fn entry(&mut self, key: Form, value: Form) -> Result<Vec<u8>> {
        let close = self.open()?;
        let mut out = Vec::new();
        while !self.take(close) {
            let name = self.word();
            self.take(':');
            match name {
                "key" => self.value(1, key, &mut out)?,
                "value" => self.value(2, value, &mut out)?,
                _ => return Err(self.error("expected 'key' or 'value'")),
            }
        }
        Ok(out)
    }

    fn integer(&mut self, form: Form) -> Result<u64> {
        let word = self.word();
        let number = match (form, word) {
            (_, "true" | "True" | "t") => Some(1),
            (_, "false" | "False" | "f") => Some(0),
            (Form::DType, word) if word.starts_with("DT_") => dtype(word),
            (_, word) => integer(word),
        };
        number.ok_or_else(|| self.error(&format!("'{word}' is no number")))
    }

    fn float(&mut self) -> Result<f64> {
        let word = self.word();
        let plain = word.strip_suffix(['f', 'F']).filter(|w| !w.ends_with("in"));
        let value = plain.unwrap_or(word).parse();
        value.map_err(|_| self.error(&format!("'{word}' is no number")))
    }

    /// One or more quoted strings, joined.
    fn string(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut any = false;
        loop {
            let quote = match (self.take('"'), any) {
                (true, _) => '"',
                (false, _) if self.take('\'') => '\'',
                (false, true) => return Ok(out),
                (false, false) => return Err(self.error("expected a quoted string")),
            };
            any = true;
            self.quoted(quote, &mut out)?;
        }
    }

    fn quoted(&mut self, quote: char, out: &mut Vec<u8>) -> Result<()> {
        loop {
            let rest = self.rest();
            let end = rest.find([quote, '\\', '\n']);
            let end = end.ok_or_else(|| self.error("the string does not end"))?;
            out.extend_from_slice(rest.get(..end).unwrap_or_default().as_bytes());
            let stop = rest.get(end..).and_then(|r| r.chars().next());
            self.at += end + 1;
            match stop {
                Some('\\') => self.escape(out)?,
                Some(c) if c == quote => return Ok(()),
                _ => return Err(self.error("the string does not end")),
            }
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let rest = self.rest();
        let c = rest.chars().next();
        let c = c.ok_or_else(|| self.error("the string does not end"))?;
        self.at += c.len_utf8();
        let plain = match c {
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'v' => 11,
            '"' | '\'' | '\\' | '?' => c as u8,
            'x' | 'X' => self.digits(16, 2)?,
            '0'..='7' => {
                self.at -= 1;
                self.digits(8, 3)?
            }
            _ => return Err(self.error("unknown escape in a string")),
        };
        out.push(plain);
        Ok(())
    }

    fn digits(&mut self, radix: u32, most: usize) -> Result<u8> {
        let rest = self.rest();
        let digits = rest.chars().take(most).take_while(|c| c.is_digit(radix));
        let count = digits.count();
        self.at += count;
        let value = rest.get(..count).unwrap_or_default();
        let value = u32::from_str_radix(value, radix).ok();
        let value = value.and_then(|v| u8::try_from(v).ok());
        value.ok_or_else(|| self.error("a number in a string is no byte"))
    }

    /// Skips the value of a field that nothing here reads.
    fn ignore(&mut self, colon: bool) -> Result<()> {
        if self.take('[') {
            self.depth += 1;
            if self.depth > MAX_DEPTH {
                return Err(self.error("lists are nested too deeply"));
            }
            while !self.take(']') {
                if self.rest().is_empty() {
                    return Err(self.error("the text ends inside a list"));
                }
                self.ignore(colon)?;
            }
            self.depth -= 1;
            return Ok(());
        }
        self.skip();
        match self.rest().chars().next() {
            Some('{' | '<') => self.nested(&[]).map(|_| ()),
            Some('"' | '\'') => self.string().map(|_| ()),
            _ if !self.word().is_empty() && colon => Ok(()),
            _ => Err(self.error("expected a value")),
        }
    }
}

fn integer(word: &str) -> Option<u64> {
    let (negative, digits) = match word.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, word),
    };
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => digits.parse().ok()?,
    };
    match negative {
        true => Some((-i128::from(value)).try_into().map_or(0, |v: i64| v as u64)),
        false => Some(value),
    }
}

/// The number of `DT_FLOAT` and the like, `DT_FLOAT_REF` included.
fn dtype(word: &str) -> Option<u64> {
    let (name, reference) = match word.strip_suffix("_REF") {
        Some(name) => (name, 100),
        None => (word, 0),
    };
    if name == "DT_INVALID" {
        return Some(0);
    }
    let found = DType::all().find(|d| d.enum_name() == name)?;
    Some(found.number() as u64 + reference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_wire::MessageBytes as _;
    use downpour_wire::proto;

    fn graph(text: &str) -> Result<proto::GraphDef> {
        let bytes = to_binary(text, "GraphDef")?;
        Ok(proto::GraphDef::from_bytes(bytes.as_slice()).unwrap())
    }

    #[test]
    fn a_graph_in_text_is_the_graph() {
        let text = r#"
            # as python prints it
            node {
              name: "w" op: 'VariableV2' device: "/job:ps" "/task:0"
              attr { key: "dtype" value { type: DT_FLOAT } }
              attr { key: "shape" value { shape { dim { size: -1 } dim { size: 0x10 } } } }
              attr { key: "c" value { tensor { dtype: DT_HALF float_val: [1.5, -inf, 2e3f]
                                               tensor_content: "\001\xff\n\"" } } }
              experimental_debug_info { original_node_names: ["a", "b"] }
              input: "a" input: "^b"
            }
            versions < producer: 27 >
        "#;
        let graph = graph(text).unwrap();
        let node = &graph.node[0];
        assert_eq!((node.name.as_str(), node.op.as_str()), ("w", "VariableV2"));
        assert_eq!(node.device, "/job:ps/task:0");
        assert_eq!(node.input, ["a", "^b"]);
        assert_eq!(graph.versions.unwrap().producer, 27);
        let attr = |name: &str| node.attr[name].value.clone().unwrap();
        use proto::attr_value::Value;
        assert_eq!(attr("dtype"), Value::Type(1));
        let Value::Shape(shape) = attr("shape") else {
            panic!()
        };
        let dims: Vec<i64> = shape.dim.iter().map(|d| d.size).collect();
        assert_eq!(dims, [-1, 16]);
        let Value::Tensor(tensor) = attr("c") else {
            panic!()
        };
        assert_eq!(tensor.float_val, [1.5, f32::NEG_INFINITY, 2000.0]);
        assert_eq!(&tensor.tensor_content[..], b"\x01\xff\n\"");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, want) in [
            ("node {", "line 1: the text ends inside a message"),
            ("node {\n name: 5 }", "line 2: expected a quoted string"),
            ("node {\n\n name: \"a", "line 3: the string does not end"),
            ("version: x", "line 1: 'x' is no number"),
            ("}", "line 1: expected the name of a field"),
            ("node 5", "line 1: expected '{'"),
            ("node: [", "line 1: the text ends inside a list"),
            ("what: [", "line 1: the text ends inside a list"),
            (
                "node { name: \"\\q\" }",
                "line 1: unknown escape in a string",
            ),
            (
                "node { name: \"\\777\" }",
                "line 1: a number in a string is no byte",
            ),
        ] {
            assert_eq!(graph(text).unwrap_err().message, want, "{text}");
        }
        for deep in ["a {".repeat(200), format!("a: {}", "[".repeat(1 << 20))] {
            assert!(graph(&deep).unwrap_err().message.contains("too deeply"));
        }
    }

    #[test]
    fn every_prefix_of_a_text_ends() {
        let text = "node { name: \"é\\x41\" attr { key: \"k\" value { i: -5 } } } versions {}";
        for cut in 0..text.len() {
            let _ = text.get(..cut).map(graph);
        }
    }
}
