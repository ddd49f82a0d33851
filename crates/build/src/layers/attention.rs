//! Attention with several heads.

use super::Dense;
use crate::{Graph, Output};

/// Lets every position look at others: queries, keys, values, and a projection of what was seen.
///
/// ```
/// use downpour::layers::MultiHeadAttention;
/// use downpour::{DType, Graph, Server, ServerConfig, Session};
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [None, Some(2), Some(4)]);
/// let earlier = g.constant([[true, false], [true, true]]);
/// let y = MultiHeadAttention::new(&g, "attention", 4, 2).apply(&x, Some(&earlier));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// let one = session.step().feed(&x, [[[1.0f32, 2.0, 3.0, 4.0], [5.0; 4]]]).fetch(&y)?;
/// let other = session.step().feed(&x, [[[1.0f32, 2.0, 3.0, 4.0], [0.0; 4]]]).fetch(&y)?;
/// let (one, other) = (one.as_slice::<f32>()?, other.as_slice::<f32>()?);
/// assert_eq!(one[..4], other[..4]); // the first position does not see the second
/// assert_ne!(one[4..], other[4..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiHeadAttention {
    query: Dense,
    key: Dense,
    value: Dense,
    output: Dense,
    heads: usize,
    width: usize,
}

impl MultiHeadAttention {
    /// A layer over features `width`, which the heads share out among them.
    ///
    /// # Panics
    /// If `width` is not a multiple of `heads`.
    #[track_caller]
    pub fn new(g: &Graph, name: &str, width: usize, heads: usize) -> MultiHeadAttention {
        assert_eq!(width % heads, 0, "{width} features for {heads} heads");
        g.with_scope(name, || MultiHeadAttention {
            query: Dense::new(g, "query", width, width),
            key: Dense::new(g, "key", width, width),
            value: Dense::new(g, "value", width, width),
            output: Dense::new(g, "output", width, width),
            heads,
            width,
        })
    }

    /// What `[batch, positions, width]` sees of itself; positions where the mask
    /// `[batch, 1, positions, positions]` or a shape that broadcasts to it is false are not seen.
    #[track_caller]
    pub fn apply(&self, x: &Output, mask: Option<&Output>) -> Output {
        self.look(x, x, mask)
    }

    /// What one sequence sees of another.
    #[track_caller]
    pub fn look(&self, from: &Output, at: &Output, mask: Option<&Output>) -> Output {
        let query = self.split(&self.query.apply(from));
        let key = self.split(&self.key.apply(at));
        let value = self.split(&self.value.apply(at));
        let depth = (self.width / self.heads) as f64;
        let mut scores = query.matmul_as(&key, false, true) * (1.0 / depth.sqrt());
        if let Some(mask) = mask {
            let hidden = scores.scalar_like(-1e9);
            scores = mask.select(&scores, &hidden);
        }
        let seen = scores.softmax().matmul(&value);
        // [batch, heads, positions, depth] → [batch, positions, width]
        let lead = from.shape_op().slice(&[0], &[2]);
        let shape = crate::concat(&[lead, from.graph().constant([self.width as i32])], 0);
        let joined = seen.transpose(&[0, 2, 1, 3]).reshape_to(&shape);
        self.output.apply(&joined)
    }

    /// `[batch, positions, width]` → `[batch, heads, positions, depth]`.
    #[track_caller]
    fn split(&self, x: &Output) -> Output {
        let lead = x.shape_op().slice(&[0], &[2]);
        let parts = [self.heads as i32, (self.width / self.heads) as i32];
        let shape = crate::concat(&[lead, x.graph().constant(parts)], 0);
        x.reshape_to(&shape).transpose(&[0, 2, 1, 3])
    }
}
