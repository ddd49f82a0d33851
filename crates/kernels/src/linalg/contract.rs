//! `XlaDot`, `XlaDotV2` and `XlaEinsum`: contractions over the dimensions that XLA's numbers name,
//! computed as the equation they stand for.

use super::batch::invalid;
use super::einsum::{TYPES, run};
use super::equation::Equation;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::DType;
use downpour_wire::IntFields;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("XlaDot", &[("T", TYPES)], dot);
    for t in TYPES {
        let one = std::slice::from_ref(t);
        let types = [
            ("LhsT", one),
            ("RhsT", one),
            ("preferred_element_type", one),
        ];
        r.add_typed("XlaDotV2", &types, dot);
    }
    const EINSUM: &[DType] = &[DType::Complex64, DType::BFloat16, DType::Float];
    r.add_typed("XlaEinsum", &[("T", EINSUM)], |b| {
        let equation = Equation::parse(b.attrs().str("equation")?)?;
        Built::costly(move |ctx| run(ctx, &equation))
    });
}

fn dot(b: &KernelBuilder<'_>) -> Result<Built> {
    let Some(fields) = IntFields::decode(b.attrs().bytes("dimension_numbers")?) else {
        return invalid("Failed to parse dimension_numbers");
    };
    let (contracted, batch) = (
        (fields.list(1), fields.list(2)),
        (fields.list(3), fields.list(4)),
    );
    if contracted.0.len() != contracted.1.len() || batch.0.len() != batch.1.len() {
        return invalid("both operands must name as many dimensions");
    }
    Built::costly(move |ctx| {
        let text = equation(ctx, &contracted, &batch)?;
        run(ctx, &Equation::parse(&text)?)
    })
}

/// Batch dimensions first, then what is left of the left operand, then of the right one.
fn equation(
    ctx: &OpContext<'_>,
    contracted: &(Vec<i64>, Vec<i64>),
    batch: &(Vec<i64>, Vec<i64>),
) -> Result<String> {
    let ranks = [ctx.input(0)?.rank(), ctx.input(1)?.rank()];
    let mut letters = ('a'..='z').chain('A'..='Z');
    let mut letter = || {
        letters
            .next()
            .ok_or_else(|| Status::invalid_argument("too many dimensions"))
    };
    let mut names = [vec![None; ranks[0]], vec![None; ranks[1]]];
    let mut output = String::new();
    let pairs = |p: &(Vec<i64>, Vec<i64>)| -> Vec<(i64, i64)> {
        p.0.iter().copied().zip(p.1.iter().copied()).collect()
    };
    for (of_batch, (l, r)) in pairs(batch)
        .into_iter()
        .map(|p| (true, p))
        .chain(pairs(contracted).into_iter().map(|p| (false, p)))
    {
        let c = letter()?;
        for (side, d) in [(0, l), (1, r)] {
            match usize::try_from(d).ok().and_then(|d| names[side].get_mut(d)) {
                Some(slot) if slot.is_none() => *slot = Some(c),
                _ => return invalid(format!("dimension {d} is out of range or named twice")),
            }
        }
        if of_batch {
            output.push(c);
        }
    }
    let mut sides = Vec::new();
    for side in &mut names {
        let mut text = String::new();
        for slot in side.iter_mut() {
            text.push(match slot {
                Some(c) => *c,
                None => {
                    let c = letter()?;
                    output.push(c);
                    c
                }
            });
        }
        sides.push(text);
    }
    Ok(format!("{},{}->{output}", sides[0], sides[1]))
}
