//! Dense layers, embeddings, dropout.

use crate::{DType, Graph, Init, Output, Variable};

/// `x · kernel + bias`.
///
/// ```
/// use downpour_build::layers::Dense;
/// use downpour_build::{DType, Graph};
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [None, Some(784)]);
/// let y = Dense::new(&g, "hidden", 784, 128).apply(&x).relu();
/// assert_eq!(y.shape().to_string(), "[?,128]");
/// assert_eq!(g.variables()[0].name(), "hidden/kernel");
/// ```
#[derive(Clone, Debug)]
pub struct Dense {
    /// `[inputs, outputs]`.
    pub kernel: Variable,
    /// `[outputs]`.
    pub bias: Option<Variable>,
}

impl Dense {
    /// A layer with Glorot's initialization and a bias of zeros.
    #[track_caller]
    pub fn new(g: &Graph, name: &str, inputs: usize, outputs: usize) -> Dense {
        Dense::with_init(g, name, inputs, outputs, Init::glorot_uniform())
    }

    /// A layer whose kernel begins as said.
    #[track_caller]
    pub fn with_init(g: &Graph, name: &str, inputs: usize, outputs: usize, init: Init) -> Dense {
        g.with_scope(name, || Dense {
            kernel: g
                .variable("kernel")
                .shape([inputs, outputs])
                .init(init)
                .build(),
            bias: Some(
                g.variable("bias")
                    .shape([outputs])
                    .init(Init::zeros())
                    .build(),
            ),
        })
    }

    /// A layer without bias.
    #[track_caller]
    pub fn without_bias(g: &Graph, name: &str, inputs: usize, outputs: usize) -> Dense {
        g.with_scope(name, || Dense {
            kernel: g.variable("kernel").shape([inputs, outputs]).build(),
            bias: None,
        })
    }

    /// Applies it over the last dimension.
    #[track_caller]
    pub fn apply(&self, x: &Output) -> Output {
        let (rank, last) = (x.rank().unwrap_or(2), self.kernel.shape());
        let product = match rank {
            0..=2 => x.matmul(&self.kernel),
            _ => {
                // All but the last dimension are rows of one product.
                let width = last.dims().and_then(|d| d[0]).unwrap_or(0) as i32;
                let count = last.dims().and_then(|d| d[1]).unwrap_or(0) as i32;
                let lead = x.shape_op().slice(&[0], &[rank as i32 - 1]);
                let shape = crate::concat(&[lead, x.graph().constant([count])], 0);
                x.reshape(&[-1, width])
                    .matmul(&self.kernel)
                    .reshape_to(&shape)
            }
        };
        match &self.bias {
            Some(bias) => product.bias_add(bias),
            None => product,
        }
    }
}

/// A table of rows, one for each id.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, layers::Embedding};
/// let g = Graph::new();
/// let words = Embedding::new(&g, "words", 3, 2);
/// let rows = words.lookup(&g.constant([2i64, 0]));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// let (rows, table) = (session.fetch(&rows)?, session.fetch(&words.table)?);
/// let (rows, table) = (rows.as_slice::<f32>()?, table.as_slice::<f32>()?);
/// assert_eq!((&rows[..2], &rows[2..]), (&table[4..], &table[..2]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[ids, width]`.
    pub table: Variable,
}

impl Embedding {
    /// A table with uniform values between -0.05 and 0.05.
    #[track_caller]
    pub fn new(g: &Graph, name: &str, ids: usize, width: usize) -> Embedding {
        g.with_scope(name, || {
            let table = g.variable("embeddings").shape([ids, width]);
            Embedding {
                table: table.init(Init::uniform(-0.05, 0.05)).build(),
            }
        })
    }

    /// The rows of these ids; gradients touch only them.
    #[track_caller]
    pub fn lookup(&self, ids: &Output) -> Output {
        self.table.gather(ids)
    }
}

/// Sets a share of the elements to zero and scales the rest up, so that the mean stays.
///
/// ```
/// use downpour::{DType, Graph, Server, ServerConfig, Session, layers::dropout};
/// let g = Graph::new();
/// let ones = g.filled(DType::Float, [1000], 1.0);
/// let some = dropout(&ones, 0.5, Some(1));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// let some = session.fetch(&some)?;
/// let some = some.as_slice::<f32>()?;
/// assert!(some.iter().all(|&x| x == 0.0 || x == 2.0));
/// let mean = some.iter().sum::<f32>() / 1000.0;
/// assert!((0.8..1.2).contains(&mean), "{mean}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn dropout(x: &Output, rate: f64, seed: Option<i64>) -> Output {
    if rate <= 0.0 {
        return x.clone();
    }
    let g = x.graph();
    let (seed, seed2) = g.seeds(seed);
    let noise = g
        .op("RandomUniform")
        .input(&x.shape_op())
        .attr("dtype", x.dtype())
        .attr("seed", seed)
        .attr("seed2", seed2)
        .output();
    let kept = noise.greater_equal(&noise.scalar_like(rate));
    let scaled = x * (1.0 / (1.0 - rate));
    let zeros = x.zeros_like();
    match x.dtype() {
        DType::Float | DType::Double | DType::Half | DType::BFloat16 => {
            kept.select(&scaled, &zeros)
        }
        _ => x.clone(),
    }
}
