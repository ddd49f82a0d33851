//! Tensors as text: `float:1.5`, `int32:[1, 2]`, `float:[[1, 2], [3, 4]]`, `string:["a", "b"]`. Without a type a number with
//! a point is `float`, without one `int32`, a word in quotes `string`, `true` and `false` are `bool`.

use downpour_tensor::{DType, Tensor};

/// Reads a tensor.
pub fn parse_tensor(text: &str) -> Result<Tensor, String> {
    let text = text.trim();
    let (dtype, values) = match text.split_once(':') {
        Some((name, values)) if DType::from_name(name).is_ok() => {
            (DType::from_name(name).map_err(|e| e.to_string())?, values)
        }
        _ => (guess(text), text),
    };
    let mut words = Vec::new();
    let mut dims = Vec::new();
    let rest = nested(values.trim(), 0, &mut dims, &mut words)?;
    if !rest.is_empty() {
        return Err(format!("'{rest}' follows the tensor {values}"));
    }
    let bad = |word: &str| format!("'{word}' is no {dtype}");
    macro_rules! numbers {
        ($t:ty) => {{
            let all = words.iter().map(|w| w.parse::<$t>().map_err(|_| bad(w)));
            Tensor::from_vec(all.collect::<Result<Vec<_>, _>>()?, dims)
        }};
    }
    match dtype {
        DType::Float => numbers!(f32),
        DType::Double => numbers!(f64),
        DType::Int32 => numbers!(i32),
        DType::Int64 => numbers!(i64),
        DType::UInt8 => numbers!(u8),
        DType::Bool => numbers!(bool),
        DType::String => {
            let plain = words.iter().map(|w| w.trim_matches('"').to_owned().into());
            Tensor::strings(plain.collect(), dims)
        }
        other => return Err(format!("no text form for {other}")),
    }
    .map_err(|e| e.to_string())
}

fn guess(text: &str) -> DType {
    let first = text.trim_start_matches(['[', ' ']);
    let word = first.split([',', ']']).next().unwrap_or_default().trim();
    match word {
        "true" | "false" => DType::Bool,
        w if w.starts_with('"') => DType::String,
        w if w.parse::<i32>().is_ok() => DType::Int32,
        _ => DType::Float,
    }
}

/// Reads one value or a list of them, and notes the sizes on the way; returns what follows.
fn nested<'a>(
    text: &'a str,
    depth: usize,
    dims: &mut Vec<usize>,
    words: &mut Vec<&'a str>,
) -> Result<&'a str, String> {
    let Some(mut rest) = text.strip_prefix('[') else {
        let end = text.find([',', ']']).unwrap_or(text.len());
        words.push(text[..end].trim());
        return Ok(text[end..].trim_start());
    };
    let mut count = 0;
    let is_first_row = dims.len() == depth;
    if is_first_row {
        dims.push(0);
    }
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(']') {
            if is_first_row {
                dims[depth] = count;
            }
            return match dims[depth] == count {
                true => Ok(after.trim_start()),
                false => Err(format!("a row of {count} beside one of {}", dims[depth])),
            };
        }
        if count > 0 {
            rest = rest
                .strip_prefix(',')
                .ok_or_else(|| format!("no comma before '{rest}'"))?;
        }
        rest = nested(rest.trim_start(), depth + 1, dims, words)?;
        count += 1;
    }
}

/// Prints a tensor as [`parse_tensor`] reads it.
pub fn show_tensor(tensor: &Tensor) -> String {
    if tensor.num_elements() > 64 {
        return format!("{}:{} of them", tensor.dtype(), tensor.shape());
    }
    let words = words(tensor);
    let mut words = words.iter();
    let mut out = format!("{}:", tensor.dtype());
    rows(tensor.dims(), &mut words, &mut out);
    out
}

fn words(tensor: &Tensor) -> Vec<String> {
    macro_rules! texts {
        ($t:ty) => {
            tensor
                .as_slice::<$t>()
                .map_or(Vec::new(), |v| v.iter().map(|x| x.to_string()).collect())
        };
    }
    match tensor.dtype() {
        DType::Float => texts!(f32),
        DType::Double => texts!(f64),
        DType::Int32 => texts!(i32),
        DType::Int64 => texts!(i64),
        DType::UInt8 => texts!(u8),
        DType::Bool => texts!(bool),
        DType::String => {
            let texts = tensor.as_strings().unwrap_or_default().iter();
            texts
                .map(|s| format!("{:?}", String::from_utf8_lossy(s)))
                .collect()
        }
        _ => vec!["?".to_owned(); tensor.num_elements()],
    }
}

fn rows<'a>(dims: &[usize], words: &mut impl Iterator<Item = &'a String>, out: &mut String) {
    let Some((count, rest)) = dims.split_first() else {
        out.push_str(words.next().map_or("", String::as_str));
        return;
    };
    out.push('[');
    for i in 0..*count {
        if i > 0 {
            out.push_str(", ");
        }
        rows(rest, words, out);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_as_the_same() {
        for text in [
            "float:1.5",
            "int32:[1, 2]",
            "float:[[1, 2], [3, 4]]",
            "string:[\"a\", \"b\"]",
            "bool:true",
            "int64:[]",
        ] {
            assert_eq!(show_tensor(&parse_tensor(text).unwrap()), text);
        }
        assert_eq!(
            show_tensor(&parse_tensor("[0.5, 1]").unwrap()),
            "float:[0.5, 1]"
        );
        assert_eq!(show_tensor(&parse_tensor("3").unwrap()), "int32:3");
    }

    #[test]
    fn rows_of_different_lengths_are_refused() {
        assert!(parse_tensor("[[1, 2], [3]]").is_err());
        assert!(parse_tensor("[1, 2] 3").is_err());
        assert!(parse_tensor("int32:x").is_err());
    }
}
