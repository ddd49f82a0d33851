//! Shapes of strings: splitting, joining, hashing, decoding, and parsing examples.

use super::Rule::{self, Compute, Pattern};
use super::dims::{broadcast, concatenate, divide, elements, merge, shape};
use super::{Context, Dim, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    text(op).or_else(|| parsing(op))
}

fn text(op: &str) -> Option<Rule> {
    Some(match op {
        "AsString"
        | "DecodeBase64"
        | "EncodeBase64"
        | "StaticRegexFullMatch"
        | "StaticRegexReplace"
        | "StringLength"
        | "StringLower"
        | "StringUpper"
        | "StringStrip"
        | "StringToHashBucket"
        | "StringToHashBucketFast"
        | "StringToHashBucketStrong"
        | "StringToNumber"
        | "UnicodeTranscode"
        | "DecodeJSONExample"
        | "DecodeCompressed"
        | "UnicodeScript" => Pattern("S -> S"),
        "RegexReplace" => Pattern("S [] [] -> S"),
        "RegexFullMatch" => Pattern("S [] -> S"),
        "StringJoin" => Compute(|c| {
            let inputs: Vec<PartialShape> = (0..c.num_inputs()).map(|i| c.input(i)).collect();
            if inputs.iter().all(|s| s.rank() == Some(0)) {
                return one(shape([]));
            }
            let mut out = PartialShape::unknown();
            for input in inputs.iter().filter(|s| s.rank() != Some(0)) {
                out = merge(&out, input)?;
            }
            one(out)
        }),
        "StringFormat" => Compute(|c| {
            let (template, placeholder) =
                (c.attrs().str("template")?, c.attrs().str("placeholder")?);
            let places = template.matches(placeholder).count();
            if !placeholder.is_empty() && places != c.num_inputs() {
                return invalid(format!(
                    "num placeholders in template and num inputs must match: {places} vs. {}",
                    c.num_inputs()
                ));
            }
            one(shape([]))
        }),
        "StringSplit" | "StringSplitV2" => Pattern("[_] [] -> [_,2] [_] [2]"),
        "StringNGrams" => Pattern("[_] [n] -> [_] [n]"),
        "Substr" => Compute(|c| {
            let (at, length) = (c.input(1), c.input(2));
            if let (Some(a), Some(b)) = (at.dims(), length.dims())
                && a != b
            {
                return invalid(format!("pos and len shapes must match: {at} vs. {length}"));
            }
            one(broadcast(&c.input(0), &at)?)
        }),
        "UnicodeEncode" => Compute(|c| {
            c.rank(0, 1)?;
            match c.rank(1, 1)?[0] {
                Some(0) => invalid("Negative dimension size caused by subtracting 1 from 0"),
                n => one(shape([n.map(|n| n - 1)])),
            }
        }),
        "UnicodeDecode" | "UnicodeDecodeWithOffsets" => Compute(|c| {
            let splits = elements(&c.input(0)).and_then(|n| n.checked_add(1));
            let mut out = smallvec![shape([None]); c.num_outputs()];
            out[0] = shape([splits]);
            Ok(out)
        }),
        _ => return None,
    })
}

fn parsing(op: &str) -> Option<Rule> {
    Some(match op {
        "DecodeRaw" => Compute(|c| one(concatenate(&c.input(0), &shape([None])))),
        "DecodePaddedRaw" => Compute(|c| {
            let width = c.attrs().dtype("out_type")?.size().unwrap_or(1);
            let length = divide(c.dim_from(1)?, width)?;
            one(concatenate(&c.input(0), &shape([length])))
        }),
        "DecodeCSV" => Compute(|c| {
            for i in 1..c.num_inputs() {
                c.at_most(i, 1)?;
                if matches!(c.input(i).dims(), Some([Some(n)]) if *n > 1) {
                    return invalid(
                        "Shape of a default must be a length-0 or length-1 vector, or a scalar.",
                    );
                }
            }
            Ok(smallvec![c.input(0); c.num_outputs()])
        }),
        "ParseTensor" => Pattern("->"),
        "SerializeTensor" => Pattern("* -> []"),
        "ParseExample" => Compute(|c| {
            let lead = c.with_rank(0, 1)?;
            c.rank(1, 1)?;
            let mut out = Shapes::new();
            sparse(&mut out, c.attrs().size("Nsparse")?, Some(2));
            dense(&mut out, c, "dense_shapes", &lead)?;
            Ok(out)
        }),
        "ParseExampleV2" => Compute(parse_example),
        "ParseSingleExample" => Compute(|c| {
            c.rank(0, 0)?;
            let mut out = Shapes::new();
            sparse(&mut out, c.attrs().size("num_sparse")?, Some(1));
            dense(&mut out, c, "dense_shapes", &shape([]))?;
            Ok(out)
        }),
        "ParseSequenceExample" => Compute(|c| {
            let lead = c.with_rank(0, 1)?;
            c.rank(1, 1)?;
            sequence(c, &lead)
        }),
        "ParseSingleSequenceExample" => Compute(|c| {
            c.rank(0, 0)?;
            c.rank(1, 1)?;
            sequence(c, &shape([]))
        }),
        "ParseSequenceExampleV2" => Compute(parse_sequence_example),
        _ => return None,
    })
}

/// `n` sparse tensors of a rank: indices, values, shapes.
fn sparse(out: &mut Shapes, n: usize, rank: Dim) {
    for part in [shape([None, rank]), shape([None]), shape([rank])] {
        out.extend(std::iter::repeat_n(part, n));
    }
}

/// Dense features of the shapes that an attribute lists, behind `lead`.
fn dense(out: &mut Shapes, c: &Context<'_>, attr: &str, lead: &PartialShape) -> Result<()> {
    for feature in c.attrs().shapes(attr)? {
        out.push(concatenate(lead, feature));
    }
    Ok(())
}

/// Ragged features: their values, then their row splits.
fn ragged(out: &mut Shapes, n: usize, splits: PartialShape) {
    out.extend(std::iter::repeat_n(shape([None]), n));
    out.extend(std::iter::repeat_n(splits, n));
}

fn parse_example(c: &mut Context<'_>) -> Result<Shapes> {
    c.at_most(0, 1)?;
    c.at_most(1, 1)?;
    let input = c.input(0);
    let rank = input.rank().map(|r| r + 1);
    let mut out = Shapes::new();
    sparse(&mut out, c.attrs().size("num_sparse")?, rank);
    dense(&mut out, c, "dense_shapes", &input)?;
    let count = c.attrs().dtypes("ragged_value_types")?.len();
    let splits = match input.dims() {
        Some([Some(n)]) => shape([Some(n + 1)]),
        Some([]) => shape([Some(0)]),
        _ => shape([None]),
    };
    ragged(&mut out, count, splits);
    Ok(out)
}

fn sequence(c: &Context<'_>, lead: &PartialShape) -> Result<Shapes> {
    let rank = lead.rank().unwrap_or(0);
    let single = rank == 0;
    let mut out = Shapes::new();
    let context = match single {
        true => c.attrs().dtypes("context_sparse_types")?.len(),
        false => c.attrs().size("Ncontext_sparse")?,
    };
    sparse(&mut out, context, Some(rank + 1));
    dense(&mut out, c, "context_dense_shapes", lead)?;
    let lists = match single {
        true => c.attrs().dtypes("feature_list_sparse_types")?.len(),
        false => c.attrs().size("Nfeature_list_sparse")?,
    };
    sparse(&mut out, lists, Some(rank + 2));
    let steps = concatenate(lead, &shape([None]));
    dense(&mut out, c, "feature_list_dense_shapes", &steps)?;
    if !single {
        let n = c.attrs().shapes("feature_list_dense_shapes")?.len();
        out.extend(std::iter::repeat_n(lead.clone(), n));
    }
    Ok(out)
}

fn parse_sequence_example(c: &mut Context<'_>) -> Result<Shapes> {
    c.at_most(0, 1)?;
    c.at_most(1, 1)?;
    let input = c.input(0);
    let rank = |more: usize| input.rank().map(|r| r + more);
    let rows = input.dims().and_then(|d| d.first().copied().flatten());
    let splits = match input.rank() {
        Some(0) => shape([Some(2)]),
        _ => shape([rows.map(|n| n + 1)]),
    };
    let types = |name: &str| c.attrs().dtypes(name).map(<[_]>::len);
    let mut out = Shapes::new();
    sparse(&mut out, c.attrs().size("Ncontext_sparse")?, rank(1));
    dense(&mut out, c, "context_dense_shapes", &input)?;
    ragged(
        &mut out,
        types("context_ragged_value_types")?,
        splits.clone(),
    );
    sparse(&mut out, c.attrs().size("Nfeature_list_sparse")?, rank(2));
    let steps = concatenate(&input, &shape([None]));
    dense(&mut out, c, "feature_list_dense_shapes", &steps)?;
    let n = c.attrs().shapes("feature_list_dense_shapes")?.len();
    out.extend(std::iter::repeat_n(input.clone(), n));
    let lists = types("feature_list_ragged_value_types")?;
    out.extend(std::iter::repeat_n(shape([None]), lists));
    out.extend(std::iter::repeat_n(splits, lists));
    out.extend(std::iter::repeat_n(shape([None]), lists));
    Ok(out)
}
