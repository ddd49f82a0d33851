//! Long short-term memory, one step at a time.

use crate::{DType, Graph, Init, Output, Variable, concat};

/// A cell with TensorFlow's order of gates: input, new value, forget, output.
///
/// ```
/// use downpour::{DType, Graph, Server, ServerConfig, Session, layers::LstmCell};
/// let g = Graph::new();
/// let cell = LstmCell::new(&g, "lstm", 2, 1);
/// let mut state = cell.zero_state(1, DType::Float);
/// for _ in 0..3 {
///     state = cell.step(&g.constant([[0.0f32, 0.0]]), &state);
/// }
/// let open = cell.bias.assign(&g.constant([100.0f32; 4]));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&open)?;
/// // With all gates open a cell counts its steps.
/// assert_eq!(session.fetch(&state.c)?.as_slice::<f32>()?, [3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LstmCell {
    /// `[inputs + units, 4 units]`.
    pub kernel: Variable,
    /// `[4 units]`.
    pub bias: Variable,
    units: usize,
    forget_bias: f64,
}

/// What a cell remembers: `[batch, units]` each.
///
/// ```
/// use downpour::layers::{LstmCell, LstmState};
/// use downpour::{Graph, Server, ServerConfig, Session};
/// let g = Graph::new();
/// let cell = LstmCell::new(&g, "lstm", 1, 1);
/// let full = LstmState { c: g.constant([[1.0f32]]), h: g.constant([[0.0f32]]) };
/// let next = cell.step(&g.constant([[0.0f32]]), &full);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// // Nothing comes in, and the forget gate's bias is 1: sigmoid(1) of the memory is kept.
/// let kept = session.fetch(&next.c)?.as_slice::<f32>()?[0];
/// assert!((kept - 0.731_058_6).abs() < 1e-5, "{kept}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LstmState {
    /// Its memory.
    pub c: Output,
    /// Its last output.
    pub h: Output,
}

impl LstmCell {
    /// A cell that at first forgets little.
    #[track_caller]
    pub fn new(g: &Graph, name: &str, inputs: usize, units: usize) -> LstmCell {
        g.with_scope(name, || LstmCell {
            kernel: g
                .variable("kernel")
                .shape([inputs + units, 4 * units])
                .build(),
            bias: g
                .variable("bias")
                .shape([4 * units])
                .init(Init::zeros())
                .build(),
            units,
            forget_bias: 1.0,
        })
    }

    /// The state of a cell that has seen nothing, for a batch of this size.
    #[track_caller]
    pub fn zero_state(&self, batch: usize, dtype: DType) -> LstmState {
        let zeros = self
            .kernel
            .handle()
            .graph()
            .zeros(dtype, [batch, self.units]);
        LstmState {
            c: zeros.clone(),
            h: zeros,
        }
    }

    /// One step: the output is the new state's `h`.
    #[track_caller]
    pub fn step(&self, x: &Output, state: &LstmState) -> LstmState {
        let joined = concat(&[x.clone(), state.h.clone()], 1);
        let gates = joined.matmul(&self.kernel).bias_add(&self.bias);
        let parts = gates.split(4, 1);
        let [input, value, forget, output] = parts.as_slice() else {
            // The kernel could not be made; the graph has kept why.
            return state.clone();
        };
        let kept = &state.c * (forget + self.forget_bias).sigmoid();
        let c = kept + input.sigmoid() * value.tanh();
        LstmState {
            h: c.tanh() * output.sigmoid(),
            c,
        }
    }
}
