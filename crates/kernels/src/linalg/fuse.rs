//! Activations that graph optimisers fuse into products: applied to finished elements in place.

/// An activation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Activation {
    /// The value itself.
    None,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` or `exp(x) - 1`.
    Elu,
    /// `x` or `alpha * x`.
    LeakyRelu(f32),
    /// Hyperbolic tangent.
    Tanh,
    /// Logistic function.
    Sigmoid,
    /// Gelu by its tanh approximation.
    GeluApproximate,
    /// Gelu by the error function.
    GeluExact,
}

impl Activation {
    /// The activation called `name` in `fused_ops`.
    pub(crate) fn parse(name: &str, alpha: f32) -> Option<Activation> {
        Some(match name {
            "Relu" => Activation::Relu,
            "Relu6" => Activation::Relu6,
            "Elu" => Activation::Elu,
            "LeakyRelu" => Activation::LeakyRelu(alpha),
            "Tanh" => Activation::Tanh,
            "Sigmoid" => Activation::Sigmoid,
            "GeluApproximate" => Activation::GeluApproximate,
            "GeluExact" => Activation::GeluExact,
            _ => return None,
        })
    }

    /// Applies it to every element.
    pub(crate) fn apply(self, values: &mut [f32]) {
        let each = |values: &mut [f32], f: &dyn Fn(f32) -> f32| {
            values.iter_mut().for_each(|v| *v = f(*v));
        };
        match self {
            Activation::None => {}
            Activation::Relu => relu(values),
            Activation::Relu6 => each(values, &|x| x.clamp(0.0, 6.0)),
            Activation::Elu => each(values, &|x| if x < 0.0 { x.exp_m1() } else { x }),
            Activation::LeakyRelu(a) => each(values, &|x| if x > 0.0 { x } else { a * x }),
            Activation::Tanh => each(values, &f32::tanh),
            Activation::Sigmoid => each(values, &|x| 1.0 / (1.0 + (-x).exp())),
            Activation::GeluApproximate => each(values, &|x| {
                let inner = 0.797_884_6 * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }),
            Activation::GeluExact => each(values, &|x| {
                0.5 * x * (1.0 + erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2) as f32)
            }),
        }
    }
}

super::wide::wide_fn! {
    fn relu(values: &mut [f32]) {
        // A comparison with NaN is false, so NaN stays, as it does in TensorFlow.
        values.iter_mut().for_each(|v| *v = if *v < 0.0 { 0.0 } else { *v });
    }
}

/// The error function by its series and continued fraction; relative error below 1e-12.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        for n in 1..60 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return (sum * std::f64::consts::FRAC_2_SQRT_PI).copysign(x);
    }
    let mut fraction = 0.0;
    for n in (1..60).rev() {
        fraction = f64::from(n) / 2.0 / (a + fraction);
    }
    let tail = (-a * a).exp() / (a + fraction) / std::f64::consts::PI.sqrt();
    (1.0 - tail).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_have_their_known_values() {
        let mut v = [-1.0f32, 0.5, 7.0];
        let mut at = |name: &str| {
            let mut w = v;
            Activation::parse(name, 0.2).unwrap().apply(&mut w);
            v = [-1.0, 0.5, 7.0];
            w
        };
        assert_eq!(at("Relu"), [0.0, 0.5, 7.0]);
        assert_eq!(at("Relu6"), [0.0, 0.5, 6.0]);
        assert_eq!(at("LeakyRelu"), [-0.2, 0.5, 7.0]);
        assert_eq!(at("Elu"), [-0.632_120_55, 0.5, 7.0]);
        assert!((at("GeluExact")[0] + 0.158_655_25).abs() < 1e-6);
        assert!((at("GeluApproximate")[0] + 0.158_808).abs() < 1e-5);
        assert!((at("Sigmoid")[1] - 0.622_459_3).abs() < 1e-6);
        assert!(Activation::parse("Softmax", 0.0).is_none());
    }
}
