//! Keeping values and gradients within bounds, by TensorFlow's formulas. Of a sparse gradient
//! only the rows that it has are looked at.

use crate::{Gradient, Output};
use downpour_graph::{Result, Status};
use downpour_tensor::DType;

impl Gradient {
    /// The numbers it holds: every element's, or some rows'.
    pub fn values(&self) -> &Output {
        match self {
            Gradient::Dense(output) => output,
            Gradient::Sparse(slices) => &slices.values,
        }
    }

    /// The same with other numbers.
    #[must_use]
    pub fn with_values(&self, values: Output) -> Gradient {
        match self {
            Gradient::Dense(_) => Gradient::Dense(values),
            Gradient::Sparse(slices) => Gradient::Sparse(crate::IndexedSlices {
                values,
                ..slices.clone()
            }),
        }
    }
}

/// Each number kept between two bounds.
///
/// ```
/// use downpour::{Gradient, Graph, Server, ServerConfig, Session, clip_by_value};
/// let g = Graph::new();
/// let wild = Gradient::Dense(g.constant([-3.0f32, 0.5, 4.0]));
/// let tame = clip_by_value(&wild, -1.0, 1.0);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(tame.values())?.as_slice::<f32>()?, [-1.0, 0.5, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn clip_by_value(x: &Gradient, low: f64, high: f64) -> Gradient {
    x.with_values(x.values().clip(low, high))
}

/// Scaled down to this norm if it is longer.
///
/// ```
/// use downpour_build::{Gradient, Graph, clip_by_norm};
/// let g = Graph::new();
/// let long = Gradient::Dense(g.constant([3.0f32, 4.0]));
/// let short = clip_by_norm(&long, 1.0); // [0.6, 0.8]
/// assert_eq!(short.values().shape().to_string(), "[2]");
/// ```
#[track_caller]
pub fn clip_by_norm(x: &Gradient, norm: f64) -> Gradient {
    let values = x.values();
    let norm = values.scalar_like(norm.max(0.0));
    let sum = (values * values).sum_keep(());
    // The root's own gradient at 0 would be infinite.
    let some = sum.greater(&sum.scalar_like(0.0));
    let safe = some.select(&sum, &sum.ones_like());
    let length = some.select(&safe.sqrt(), &sum);
    x.with_values(values * &norm / length.maximum(&norm))
}

/// The norm of all gradients taken together; those that are `None` do not count.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, global_norm, gradients};
/// let g = Graph::new();
/// let (a, b, unused) = (g.constant(1.0f32), g.constant(1.0f32), g.constant(1.0f32));
/// let loss = &a * 3.0 + &b * 4.0;
/// let all = gradients(&[loss], &[a, b, unused])?; // 3, 4 and none
/// let norm = global_norm(&all)?;
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&norm)?.scalar_value::<f32>()?, 5.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn global_norm(all: &[Option<Gradient>]) -> Result<Output> {
    let mut halves = Vec::new();
    for values in all.iter().flatten().map(Gradient::values) {
        let half = values
            .graph()
            .with_colocation(&values.operation(), || values.l2_loss());
        halves.push(match half.dtype() {
            DType::Half | DType::BFloat16 => half.cast(DType::Float),
            _ => half,
        });
    }
    if halves.is_empty() {
        return Err(Status::invalid_argument("the global norm of no gradients"));
    }
    Ok((crate::stack(&halves, 0).sum(()) * 2.0).sqrt())
}

/// All gradients scaled down together so that their global norm is at most `norm`, and that
/// norm before. If it is not finite all become NaN.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, clip_by_global_norm, gradients};
/// let g = Graph::new();
/// let (a, b) = (g.constant(1.0f32), g.constant(1.0f32));
/// let loss = &a * 3.0 + &b * 4.0;
/// let all = gradients(&[loss], &[a, b])?; // 3 and 4
/// let (clipped, norm) = clip_by_global_norm(&all, 2.5)?;
/// let (a, b) = (clipped[0].as_ref().unwrap(), clipped[1].as_ref().unwrap());
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&norm)?.scalar_value::<f32>()?, 5.0);
/// assert_eq!(session.fetch(a.values())?.scalar_value::<f32>()?, 1.5);
/// assert_eq!(session.fetch(b.values())?.scalar_value::<f32>()?, 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn clip_by_global_norm(
    all: &[Option<Gradient>],
    norm: f64,
) -> Result<(Vec<Option<Gradient>>, Output)> {
    let length = global_norm(all)?;
    let ratio = (1.0 / &length).minimum(&length.scalar_like(1.0 / norm));
    // What is not finite makes the scale NaN.
    let nan_or_zero = length.binary("Sub", &length);
    let scale = norm * ratio + nan_or_zero;
    let clipped = all.iter().map(|gradient| {
        let gradient = gradient.as_ref()?;
        let values = gradient.values();
        let graph = values.graph();
        let scaled = graph.with_colocation(&values.operation(), || {
            (values * scale.cast(values.dtype())).identity()
        });
        Some(gradient.with_values(scaled))
    });
    Ok((clipped.collect(), length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, IndexedSlices};

    fn rows(g: &Graph) -> Gradient {
        Gradient::Sparse(IndexedSlices {
            values: g.constant([[3.0f32, 4.0]]),
            indices: g.constant([5i32]),
            shape: g.constant([10i32, 2]),
        })
    }

    #[test]
    fn rows_stay_where_they_are() {
        let g = Graph::new();
        let before = rows(&g);
        let all = [
            Some(before.clone()),
            None,
            Some(g.constant([1.0f32]).into()),
        ];
        let (clipped, norm) = clip_by_global_norm(&all, 1.0).unwrap();
        let clipped_row = clipped[0].clone().unwrap();
        for after in [
            clip_by_value(&before, -1.0, 1.0),
            clip_by_norm(&before, 1.0),
            clipped_row,
        ] {
            let (Gradient::Sparse(before), Gradient::Sparse(after)) = (&before, &after) else {
                panic!("{after:?}")
            };
            assert_eq!(
                (&before.indices, &before.shape),
                (&after.indices, &after.shape)
            );
            assert_eq!(after.values.shape().to_string(), "[1,2]");
        }
        assert!(clipped[1].is_none() && matches!(clipped[2], Some(Gradient::Dense(_))));
        assert_eq!(norm.shape().to_string(), "[]");
        g.check().unwrap();
    }

    #[test]
    fn half_precision_gradients_have_a_norm_in_float() {
        let g = Graph::new();
        let half = g.filled(DType::Half, [2], 1.0);
        let all = [Some(half.into()), Some(g.constant([1.0f32]).into())];
        let (clipped, norm) = clip_by_global_norm(&all, 1.0).unwrap();
        assert_eq!(norm.dtype(), DType::Float);
        assert_eq!(clipped[0].as_ref().unwrap().values().dtype(), DType::Half);
        g.check().unwrap();
    }

    #[test]
    fn nothing_has_no_norm() {
        assert!(global_norm(&[None]).is_err());
    }
}
