//! Shapes of random numbers.

use super::Rule::{self, Compute, Pattern};
use super::dims::{concatenate, merge_dims, shape};
use super::{Context, Shapes, invalid, one};
use downpour_graph::Result;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "RandomUniform" | "RandomStandardNormal" | "TruncatedNormal" | "NonDeterministicInts" => {
            Compute(|c| one(c.shape_from(0)?))
        }
        "RandomUniformInt" => Compute(|c| {
            c.scalars([1, 2])?;
            one(c.shape_from(0)?)
        }),
        "ParameterizedTruncatedNormal" => Compute(|c| {
            (1..5).try_for_each(|i| c.at_most(i, 1))?;
            one(c.shape_from(0)?)
        }),
        "RandomGamma" | "RandomPoisson" | "RandomPoissonV2" => {
            Compute(|c| one(concatenate(&c.shape_from(0)?, &c.input(1))))
        }
        "Multinomial" => Compute(multinomial),
        "StatelessMultinomial" => Compute(|c| {
            seed(c, 2)?;
            multinomial(c)
        }),
        "StatelessRandomUniform"
        | "StatelessRandomNormal"
        | "StatelessTruncatedNormal"
        | "StatelessRandomUniformFullInt"
        | "StatelessRandomBinomial"
        | "StatelessRandomGammaV2"
        | "StatelessRandomPoisson" => Compute(stateless),
        "StatelessRandomUniformInt" => Compute(|c| {
            c.scalars([2, 3])?;
            stateless(c)
        }),
        "StatelessRandomUniformV2"
        | "StatelessRandomNormalV2"
        | "StatelessTruncatedNormalV2"
        | "StatelessRandomUniformFullIntV2" => Compute(keyed),
        "StatelessRandomUniformIntV2" => Compute(|c| {
            c.scalars([4, 5])?;
            keyed(c)
        }),
        "StatelessRandomGammaV3" => Compute(keyed),
        "StatelessShuffle" => Pattern("S -> S"),
        "StatelessRandomGetAlg" => Pattern("-> []"),
        "StatelessRandomGetKeyCounter" => Pattern("[2] -> [1] [2]"),
        "StatelessRandomGetKeyCounterAlg" => Pattern("[2] -> [1] [2] []"),
        "StatefulUniform"
        | "StatefulUniformFullInt"
        | "StatefulStandardNormalV2"
        | "StatefulTruncatedNormal" => Compute(|c| {
            c.rank(1, 0)?;
            one(c.shape_from(2)?)
        }),
        "StatefulUniformInt" => Compute(|c| {
            c.scalars([1, 3, 4])?;
            one(c.shape_from(2)?)
        }),
        "StatefulRandomBinomial" => Compute(|c| one(c.shape_from(2)?)),
        "RngSkip" => Pattern("* [] [] ->"),
        "RngReadAndSkip" => Compute(|c| {
            c.scalars([1, 2])?;
            Ok(smallvec![shape([Some(3)])])
        }),
        _ => return None,
    })
}

/// Refuses a seed that is not two numbers.
fn seed(c: &Context<'_>, i: usize) -> Result<()> {
    match c.rank(i, 1)?[0] {
        Some(n) if n != 2 => invalid(format!(
            "Dimension must be 2 but is {n}: a seed is two numbers"
        )),
        _ => Ok(()),
    }
}

fn stateless(c: &mut Context<'_>) -> Result<Shapes> {
    seed(c, 1)?;
    one(c.shape_from(0)?)
}

/// By key, counter and algorithm.
fn keyed(c: &mut Context<'_>) -> Result<Shapes> {
    c.rank(3, 0)?;
    let key = c.rank(1, 1)?[0];
    merge_dims(key, Some(1))?;
    c.rank(2, 1)?;
    one(c.shape_from(0)?)
}

fn multinomial(c: &mut Context<'_>) -> Result<Shapes> {
    let rows = c.rank(0, 2)?[0];
    c.rank(1, 0)?;
    one(shape([rows, c.dim_from(1)?]))
}
