//! Gradients of samples with respect to what they are drawn from.

use super::terms::{at, count_to, filled, join, of, rank_of, shape_of, sum_over, vector};
use super::{Back, Grads, Rule};
use downpour_graph::Result;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "RandomGamma" => |b| gamma(b, 1, false),
        "StatelessRandomGammaV2" => |b| gamma(b, 2, true),
        "StatelessRandomGammaV3" => |b| gamma(b, 4, true),
        _ => return None,
    })
}

/// By the implicit derivative of each sample, summed over the samples of one `alpha`; the shape
/// of stateless samples contains that of `alpha`.
fn gamma(b: &Back, alpha: usize, whole: bool) -> Result<Grads> {
    let (input, alpha) = (alpha, b.x(alpha));
    let mut number = at(&shape_of(&b.x(0)), 0);
    if whole {
        number = number - rank_of(&alpha);
    }
    let ones = filled(&vector(&[&number]), &number, 1.0);
    let tall = alpha.reshape_to(&join(&[&ones, &shape_of(&alpha)]));
    let slope = of("RandomGammaGrad", &[&tall, &b.y(0)]);
    b.only(
        input,
        sum_over(&(b.dy(0) * slope), &count_to(&number), false),
    )
}
