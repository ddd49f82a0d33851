//! Op signatures: arguments, results, attributes.

use crate::{AttrValue, Attrs, Result, Status};
use downpour_tensor::DType;

/// The signature of an op or a function.
#[derive(Clone, Debug, Default)]
pub struct OpDef {
    /// Op type.
    pub name: String,
    /// Data inputs.
    pub inputs: Vec<ArgDef>,
    /// Outputs.
    pub outputs: Vec<ArgDef>,
    /// Attributes.
    pub attrs: Vec<AttrDef>,
    /// Has state or side effects: never folded, merged or pruned by value.
    pub stateful: bool,
    /// `f(a, b) = f(b, a)`.
    pub commutative: bool,
    /// May run on an uninitialised reference.
    pub allows_uninitialized_input: bool,
    /// Names of control results (functions only).
    pub control_outputs: Vec<String>,
}

/// An input or output: one tensor, `N` tensors of one type, or a list of types.
#[derive(Clone, Debug)]
pub struct ArgDef {
    /// Name.
    pub name: String,
    /// Number and types.
    pub kind: ArgKind,
    /// Passed by reference.
    pub is_ref: bool,
}

/// How many tensors an argument stands for, and of which type.
#[derive(Clone, Debug)]
pub enum ArgKind {
    /// One tensor.
    Single(ElementType),
    /// As many tensors as the `int` attribute says.
    Repeated(String, ElementType),
    /// One tensor for each entry of the `list(type)` attribute.
    List(String),
}

/// A fixed element type, or the one a `type` attribute names.
#[derive(Clone, Debug)]
pub enum ElementType {
    /// Always this type.
    Fixed(DType),
    /// The type in this attribute.
    Attr(String),
}

/// An attribute's declaration.
#[derive(Clone, Debug)]
pub struct AttrDef {
    /// Name.
    pub name: String,
    /// Kind: `int`, `list(type)`, ….
    pub kind: String,
    /// Value when a node gives none.
    pub default: Option<AttrValue>,
    /// Least value of an `int`, least length of a list.
    pub minimum: Option<i64>,
    /// Admitted types or strings; empty means any.
    pub allowed: Vec<AttrValue>,
}

impl OpDef {
    /// The declaration of the attribute `name`.
    pub fn attr(&self, name: &str) -> Option<&AttrDef> {
        self.attrs.iter().find(|a| a.name == name)
    }

    /// `(type, is_ref)` of each input tensor of a node with these attributes.
    pub fn input_types(&self, attrs: &Attrs) -> Result<Vec<(DType, bool)>> {
        types(&self.inputs, attrs)
    }

    /// `(type, is_ref)` of each output tensor of a node with these attributes.
    pub fn output_types(&self, attrs: &Attrs) -> Result<Vec<(DType, bool)>> {
        types(&self.outputs, attrs)
    }

    /// The range of input positions that each argument takes, in order.
    pub fn input_ranges(&self, attrs: &Attrs) -> Result<Vec<(&str, std::ops::Range<usize>)>> {
        ranges(&self.inputs, attrs)
    }

    /// The range of output positions that each result takes, in order.
    pub fn output_ranges(&self, attrs: &Attrs) -> Result<Vec<(&str, std::ops::Range<usize>)>> {
        ranges(&self.outputs, attrs)
    }
}

/// Most tensors one argument may stand for; a larger `N` is refused before anything is allocated.
const MAX_ARG_LENGTH: i64 = 1 << 20;

impl ArgDef {
    /// Appends the types of the tensors this argument stands for.
    pub fn append_types(&self, attrs: &Attrs, out: &mut Vec<(DType, bool)>) -> Result<()> {
        match &self.kind {
            ArgKind::Single(t) => out.push((t.resolve(attrs)?, self.is_ref)),
            ArgKind::Repeated(number, t) => {
                let n = attrs.int(number)?;
                if !(0..=MAX_ARG_LENGTH).contains(&n) {
                    return Err(Status::invalid_argument(format!(
                        "attr '{number}' is {n}, but must be between 0 and {MAX_ARG_LENGTH}"
                    )));
                }
                let t = t.resolve(attrs)?;
                out.extend((0..n).map(|_| (t, self.is_ref)));
            }
            ArgKind::List(list) => {
                out.extend(attrs.dtypes(list)?.iter().map(|&t| (t, self.is_ref)));
            }
        }
        Ok(())
    }
}

impl ElementType {
    /// The type in a node with these attributes.
    pub fn resolve(&self, attrs: &Attrs) -> Result<DType> {
        match self {
            ElementType::Fixed(t) => Ok(*t),
            ElementType::Attr(name) => attrs.dtype(name),
        }
    }
}

fn types(args: &[ArgDef], attrs: &Attrs) -> Result<Vec<(DType, bool)>> {
    let mut out = Vec::with_capacity(args.len());
    for arg in args {
        arg.append_types(attrs, &mut out)?;
    }
    Ok(out)
}

fn ranges<'a>(args: &'a [ArgDef], attrs: &Attrs) -> Result<Vec<(&'a str, std::ops::Range<usize>)>> {
    let mut scratch = Vec::new();
    let mut out = Vec::with_capacity(args.len());
    for arg in args {
        let start = scratch.len();
        arg.append_types(attrs, &mut scratch)?;
        out.push((arg.name.as_str(), start..scratch.len()));
    }
    Ok(out)
}
