//! Graphs with control flow, built by the API, which `flow.py` runs beside formulas of its own.
//! An example takes its inputs as placeholders; what is differentiated is the first fetch.

use anyhow::{Context as _, Result};
use downpour_build::{
    Branch, DType, Gradient, Graph, GraphDef, Init, NodeDef, Output, PartialShape, Tensor,
    TensorList, Variable, While, call, case, cond, cond_op, fold, gradients, map_fn, scan,
    switch_case, while_loop,
};

/// What an example consists of.
#[derive(Default)]
pub(crate) struct Example {
    /// Tensors to feed.
    pub(crate) feeds: Vec<Output>,
    /// Tensors to run; the first one is differentiated.
    pub(crate) fetches: Vec<Output>,
    /// With respect to what.
    pub(crate) xs: Vec<Output>,
}

type Build = fn(&Graph) -> Result<Example>;

/// All examples by name.
pub(crate) const ALL: &[(&str, Build)] = &[
    ("cond/captures", cond_captures),
    ("cond/values_from_inside", cond_values),
    ("cond/nested", cond_nested),
    ("cond/effects", cond_effects),
    ("cond/only_one_uses", cond_one_side),
    ("cond/embedding", cond_embedding),
    ("cond/waits_for_outside", cond_waits),
    ("cond/second_order", cond_second),
    ("case/first_true", case_first),
    ("switch_case/three", switch_three),
    ("while/power", while_power),
    ("while/counter_in_gradient", while_counter),
    ("while/maximum_iterations", while_maximum),
    ("while/nested", while_nested),
    ("while/nested_captured", while_nested_captured),
    ("while/updates_variable", while_updates),
    ("while/reads_variable", while_reads),
    ("while/gathers_variable", while_gathers),
    ("while/cond_inside", while_cond),
    ("while/second_order", while_second),
    ("while/grows", while_grows),
    ("while/descends_inside", while_descends),
    ("while/random_is_not_repeated", while_random),
    ("list/push_pop", list_push_pop),
    ("list/set_get_gather", list_set_get),
    ("map_fn/rows", map_rows),
    ("map_fn/two_of_each", map_two),
    ("fold/horner", fold_horner),
    ("scan/recurrent", scan_recurrent),
    ("call/captures", call_captures),
    ("call/nested_and_twice", call_nested),
    ("call/variable", call_variable),
    ("call/embedding", call_embedding),
    ("call/loop_inside", call_loop),
    ("call/second_order", call_second),
    ("v1/loop", v1_loop),
];

/// Builds an example, with its gradients if they are wanted.
pub(crate) fn build(
    name: &str,
    g: &Graph,
    with_gradients: bool,
) -> Result<(Example, Vec<Option<Gradient>>)> {
    let (_, build) = ALL
        .iter()
        .find(|(n, _)| *n == name)
        .with_context(|| format!("no example '{name}'"))?;
    let example = build(g)?;
    g.initialize_variables();
    g.check()?;
    let grads = match with_gradients {
        true => gradients(&example.fetches[..1], &example.xs)?,
        false => vec![None; example.xs.len()],
    };
    Ok((example, grads))
}

fn scalar(g: &Graph, name: &str) -> Output {
    g.placeholder(name, DType::Float, ())
}

fn vector(g: &Graph, name: &str, n: usize) -> Output {
    g.placeholder(name, DType::Float, [n])
}

fn matrix(g: &Graph, name: &str, n: usize, m: usize) -> Output {
    g.placeholder(name, DType::Float, [n, m])
}

fn flag(g: &Graph, name: &str) -> Output {
    g.placeholder(name, DType::Bool, ())
}

/// The type and shape of an argument of which little is known.
fn any() -> (DType, PartialShape) {
    (DType::Float, PartialShape::unknown())
}

fn int(g: &Graph, name: &str) -> Output {
    g.placeholder(name, DType::Int32, ())
}

fn table(g: &Graph) -> Variable {
    let rows = [[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]];
    g.variable("table").init(Init::value(rows)).build()
}

fn of(feeds: &[&Output], fetches: Vec<Output>, xs: &[&Output]) -> Result<Example> {
    let all = |list: &[&Output]| list.iter().map(|o| (*o).clone()).collect();
    Ok(Example {
        feeds: all(feeds),
        fetches,
        xs: all(xs),
    })
}

fn cond_captures(g: &Graph) -> Result<Example> {
    let (p, x, w) = (flag(g, "p"), vector(g, "x", 3), scalar(g, "w"));
    let y = cond(&p, |_| vec![&x * &w + 1.0], |_| vec![x.square()]);
    of(&[&p, &x, &w], y, &[&x, &w])
}

fn cond_values(g: &Graph) -> Result<Example> {
    let (p, x) = (flag(g, "p"), vector(g, "x", 3));
    let y = cond(
        &p,
        |_| vec![x.exp().tanh() * 2.0, x.clone()],
        |_| vec![(x.square() + 1.0).log(), x.sigmoid()],
    );
    let sum = (&y[0] * &y[1]).sum(());
    of(&[&p, &x], vec![sum, y[0].clone(), y[1].clone()], &[&x])
}

fn cond_nested(g: &Graph) -> Result<Example> {
    let (p, q, x) = (flag(g, "p"), flag(g, "q"), vector(g, "x", 2));
    let y = cond(
        &p,
        |_| {
            let z = x.exp();
            cond(&q, |_| vec![&z * &x], |_| vec![z.tanh()])
        },
        |_| cond(&q, |_| vec![x.square()], |_| vec![x.sigmoid() * &x]),
    );
    of(&[&p, &q, &x], y, &[&x])
}

fn cond_effects(g: &Graph) -> Result<Example> {
    let (p, x) = (flag(g, "p"), scalar(g, "x"));
    let v = g.variable("v").init(Init::value(10.0f32)).build();
    let add = cond_op(
        &p,
        |_| {
            v.assign_add(&x);
            // In the order of the program, without being told.
            v.assign(&(v.read() * 2.0));
        },
        |_| {
            v.assign(&x);
        },
    );
    let after = g.with_control(&[add], || v.read());
    of(&[&p, &x], vec![after], &[])
}

fn cond_one_side(g: &Graph) -> Result<Example> {
    let (p, x, w) = (flag(g, "p"), vector(g, "x", 2), vector(g, "w", 2));
    let y = cond(&p, |_| vec![x.exp()], |_| vec![&w * 3.0]);
    of(&[&p, &x, &w], y, &[&x, &w])
}

fn cond_embedding(g: &Graph) -> Result<Example> {
    let (p, i) = (flag(g, "p"), g.placeholder("i", DType::Int32, [2]));
    let t = table(g);
    let y = cond(
        &p,
        |_| vec![t.gather(&i).square()],
        |_| vec![t.gather(&i) * 3.0],
    );
    of(&[&p, &i], y, &[t.handle()])
}

fn cond_waits(g: &Graph) -> Result<Example> {
    let (p, x) = (flag(g, "p"), scalar(g, "x"));
    let v = g.variable("v").init(Init::value(1.0f32)).build();
    let set = v.assign(&x);
    let y = cond(
        &p,
        |g| g.with_control(std::slice::from_ref(&set), || vec![v.read()]),
        |_| vec![v.read() + 100.0],
    );
    of(&[&p, &x], y, &[])
}

fn cond_second(g: &Graph) -> Result<Example> {
    let (p, x) = (flag(g, "p"), vector(g, "x", 2));
    let y = cond(&p, |_| vec![x.exp() * &x], |_| vec![x.square() * &x]);
    let dx = first(gradients(&y, std::slice::from_ref(&x))?)?;
    of(&[&p, &x], vec![dx, y[0].clone()], &[&x])
}

fn case_first(g: &Graph) -> Result<Example> {
    let x = scalar(g, "x");
    let branch = |f: fn(&Output) -> Output, x: &Output| -> Branch<'static> {
        let x = x.clone();
        Box::new(move |_| vec![f(&x)])
    };
    let y = case(
        vec![
            (x.less(&g.constant(-1.0f32)), branch(|x| -x, &x)),
            (x.less(&g.constant(1.0f32)), branch(|x| x.square(), &x)),
        ],
        branch(|x| x.exp(), &x),
    );
    of(&[&x], y, &[&x])
}

fn switch_three(g: &Graph) -> Result<Example> {
    let (i, x, w) = (int(g, "i"), vector(g, "x", 2), vector(g, "w", 2));
    let branches: Vec<Branch<'_>> = vec![
        Box::new(|_| vec![&x * &w]),
        Box::new(|_| vec![x.exp() * &w]),
        Box::new(|_| vec![x.tanh()]),
    ];
    let y = switch_case(&i, branches);
    of(&[&i, &x, &w], y, &[&x, &w])
}

fn while_power(g: &Graph) -> Result<Example> {
    let (n, x, a) = (int(g, "n"), vector(g, "x", 2), vector(g, "a", 2));
    let y = while_loop(
        &[g.constant(0i32), x.clone()],
        |_, v| v[0].less(&n),
        |_, v| vec![&v[0] + 1, &v[1] * &a],
    );
    of(&[&n, &x, &a], vec![y[1].clone(), y[0].clone()], &[&x, &a])
}

fn while_counter(g: &Graph) -> Result<Example> {
    let (n, x) = (int(g, "n"), scalar(g, "x"));
    let y = while_loop(
        &[g.constant(0i32), x.clone()],
        |_, v| v[0].less(&n),
        |_, v| vec![&v[0] + 1, &v[1] * (v[0].cast(DType::Float) + 0.5).tanh()],
    );
    of(&[&n, &x], vec![y[1].clone()], &[&x])
}

fn while_maximum(g: &Graph) -> Result<Example> {
    let (n, x) = (int(g, "n"), scalar(g, "x"));
    let y = While::new()
        .maximum_iterations_of(&n)
        .parallel_iterations(1)
        .run(
            std::slice::from_ref(&x),
            |g, v| v[0].less(&g.constant(100.0f32)),
            |_, v| vec![v[0].square() + 1.0],
        );
    of(&[&n, &x], y, &[&x])
}

fn while_nested(g: &Graph) -> Result<Example> {
    let (n, m, x) = (int(g, "n"), int(g, "m"), vector(g, "x", 2));
    let y = while_loop(
        &[g.constant(0i32), x.clone()],
        |_, v| v[0].less(&n),
        |g, v| {
            let inner = while_loop(
                &[g.constant(0i32), v[1].clone()],
                |_, w| w[0].less(&m),
                |_, w| vec![&w[0] + 1, w[1].tanh() * 1.5],
            );
            vec![&v[0] + 1, &inner[1] * &v[1]]
        },
    );
    of(&[&n, &m, &x], vec![y[1].clone()], &[&x])
}

fn while_nested_captured(g: &Graph) -> Result<Example> {
    let (n, m, x, w) = (
        int(g, "n"),
        int(g, "m"),
        vector(g, "x", 2),
        matrix(g, "w", 2, 2),
    );
    let y = while_loop(
        &[g.constant(0i32), x.reshape(&[1, 2])],
        |_, v| v[0].less(&n),
        |g, v| {
            let scale = v[1].sigmoid();
            let inner = while_loop(
                &[g.constant(0i32), v[1].clone()],
                |_, u| u[0].less(&m),
                |_, u| vec![&u[0] + 1, u[1].matmul(&w).tanh() * &scale],
            );
            vec![&v[0] + 1, inner[1].clone()]
        },
    );
    of(&[&n, &m, &x, &w], vec![y[1].clone()], &[&x, &w])
}

fn while_updates(g: &Graph) -> Result<Example> {
    let (n, x) = (int(g, "n"), scalar(g, "x"));
    let v = g.variable("v").init(Init::value(1.0f32)).build();
    let seen = while_loop(
        &[g.constant(0i32), g.constant(0.0f32)],
        |_, vars| vars[0].less(&n),
        |_, vars| {
            v.assign(&(v.read() * 2.0));
            v.assign_add(&x);
            vec![&vars[0] + 1, &vars[1] + v.read()]
        },
    );
    let after = g.with_control(&[seen[1].operation()], || v.read());
    of(&[&n, &x], vec![seen[1].clone(), after], &[])
}

fn while_reads(g: &Graph) -> Result<Example> {
    let (n, x) = (int(g, "n"), vector(g, "x", 2));
    let v = g.variable("v").init(Init::value([0.5f32, 2.0])).build();
    let y = while_loop(
        &[g.constant(0i32), x.clone()],
        |_, vars| vars[0].less(&n),
        |_, vars| vec![&vars[0] + 1, (&vars[1] * v.read()).tanh() + &*v],
    );
    of(&[&n, &x], vec![y[1].clone()], &[&x, v.handle()])
}

fn while_gathers(g: &Graph) -> Result<Example> {
    let (n, i) = (int(g, "n"), g.placeholder("i", DType::Int32, [3]));
    let t = table(g);
    let y = while_loop(
        &[g.constant(0i32), g.zeros(DType::Float, [3, 2])],
        |_, vars| vars[0].less(&n),
        |_, vars| vec![&vars[0] + 1, (&vars[1] + t.gather(&i)).square() * 0.1],
    );
    of(&[&n, &i], vec![y[1].clone()], &[t.handle()])
}

fn while_cond(g: &Graph) -> Result<Example> {
    let (n, x) = (int(g, "n"), scalar(g, "x"));
    let y = while_loop(
        &[g.constant(0i32), x.clone()],
        |_, v| v[0].less(&n),
        |g, v| {
            let even = (&v[0] % 2).equal(&g.constant(0i32));
            let next = cond(&even, |_| vec![v[1].exp() * 0.5], |_| vec![&v[1] * &x]);
            vec![&v[0] + 1, next[0].clone()]
        },
    );
    of(&[&n, &x], vec![y[1].clone()], &[&x])
}

fn while_second(g: &Graph) -> Result<Example> {
    let (n, x) = (int(g, "n"), scalar(g, "x"));
    let y = while_loop(
        &[g.constant(0i32), x.clone()],
        |_, v| v[0].less(&n),
        |_, v| vec![&v[0] + 1, &v[1] * &v[1] * 0.5 + v[1].tanh()],
    );
    let dx = first(gradients(&y[1..], std::slice::from_ref(&x))?)?;
    of(&[&n, &x], vec![dx, y[1].clone()], &[&x])
}

fn while_grows(g: &Graph) -> Result<Example> {
    let (n, x) = (int(g, "n"), vector(g, "x", 2));
    let free = PartialShape::from_dims([None]);
    let y = While::new()
        .shape_invariants(vec![PartialShape::from_dims([]), free])
        .run(
            &[g.constant(0i32), x.clone()],
            |_, v| v[0].less(&n),
            |_, v| {
                let twice = downpour_build::concat(&[v[1].clone(), v[1].square()], 0);
                vec![&v[0] + 1, twice]
            },
        );
    of(&[&n, &x], vec![y[1].clone()], &[&x])
}

fn while_descends(g: &Graph) -> Result<Example> {
    let (n, x) = (int(g, "n"), vector(g, "x", 2));
    let mut failed = None;
    let y = while_loop(
        &[g.constant(0i32), x.clone()],
        |_, v| v[0].less(&n),
        |_, v| {
            let loss = (v[1].square() + v[1].tanh()).sum(());
            match gradients(&[loss], &v[1..])
                .map_err(Into::into)
                .and_then(first)
            {
                Ok(dx) => vec![&v[0] + 1, &v[1] - dx * 0.1],
                Err(e) => {
                    failed = Some(e);
                    v.to_vec()
                }
            }
        },
    );
    match failed {
        Some(e) => Err(e),
        None => of(&[&n, &x], vec![y[1].clone()], &[&x]),
    }
}

fn while_random(g: &Graph) -> Result<Example> {
    let x = vector(g, "x", 2);
    let start = [g.constant(0i32), x.clone(), g.ones(DType::Float, [2])];
    let y = while_loop(
        &start,
        |g, v| v[0].less(&g.constant(3i32)),
        |g, v| {
            // The way back must see the numbers that the way there drew.
            let drawn = g.random_uniform(DType::Float, [2], Some(7)) + 0.5;
            vec![&v[0] + 1, &v[1] * &drawn, &v[2] * &drawn]
        },
    );
    of(&[&x], vec![y[1].clone(), y[2].clone()], &[&x])
}

fn list_push_pop(g: &Graph) -> Result<Example> {
    let (x, w) = (vector(g, "x", 2), vector(g, "w", 2));
    let list = TensorList::empty(g, DType::Float, [2]);
    let list = list.push(&x.square()).push(&w.exp()).push(&(&x * &w));
    let (rest, last) = list.pop();
    let y = rest.stack().sum(0) * last;
    of(&[&x, &w], vec![y, list.stack()], &[&x, &w])
}

fn list_set_get(g: &Graph) -> Result<Example> {
    let (x, i) = (matrix(g, "x", 3, 2), int(g, "i"));
    let list = TensorList::from_tensor(&x);
    let zero = g.constant(0i32);
    let list = list.set(&i, &(list.get(&i) * list.get(&zero)));
    let some = list.gather(&g.constant([2i32, 0, 2]));
    of(&[&x, &i], vec![some.square(), list.len_op()], &[&x])
}

fn map_rows(g: &Graph) -> Result<Example> {
    let (x, w) = (
        g.placeholder("x", DType::Float, [None, Some(2)]),
        vector(g, "w", 2),
    );
    let y = map_fn(std::slice::from_ref(&x), |_, row| {
        vec![(&row[0] * &w).tanh().sum(())]
    });
    of(&[&x, &w], y, &[&x, &w])
}

fn map_two(g: &Graph) -> Result<Example> {
    let (x, z) = (matrix(g, "x", 3, 2), vector(g, "z", 3));
    let y = map_fn(&[x.clone(), z.clone()], |_, e| {
        vec![&e[0] * &e[1], e[1].exp()]
    });
    let sum = &y[0].sum(1) * &y[1];
    of(&[&x, &z], vec![sum, y[0].clone(), y[1].clone()], &[&x, &z])
}

fn fold_horner(g: &Graph) -> Result<Example> {
    let (c, x) = (vector(g, "c", 4), scalar(g, "x"));
    let y = fold(
        std::slice::from_ref(&c),
        &[g.constant(0.0f32)],
        |_, state, c| vec![&state[0] * &x + &c[0]],
    );
    of(&[&c, &x], y, &[&c, &x])
}

fn scan_recurrent(g: &Graph) -> Result<Example> {
    let (x, h) = (
        g.placeholder("x", DType::Float, [Some(4), Some(1), Some(2)]),
        matrix(g, "h", 1, 2),
    );
    let (u, w) = (matrix(g, "u", 2, 2), matrix(g, "w", 2, 2));
    let y = scan(
        std::slice::from_ref(&x),
        std::slice::from_ref(&h),
        |_, state, x| vec![(x[0].matmul(&u) + state[0].matmul(&w)).tanh()],
    );
    of(&[&x, &h, &u, &w], y, &[&x, &h, &u, &w])
}

fn call_captures(g: &Graph) -> Result<Example> {
    let (x, w) = (vector(g, "x", 2), vector(g, "w", 2));
    let f = g.function("scaled", &[any()], |_, args| {
        vec![(&args[0] * &w).tanh(), args[0].clone()]
    });
    let y = call(&f, &[&x + 1.0]);
    of(&[&x, &w], vec![&y[0] * &y[1]], &[&x, &w])
}

fn call_nested(g: &Graph) -> Result<Example> {
    let x = vector(g, "x", 2);
    let inner = g.function("inner", &[any()], |_, args| vec![args[0].exp() * &args[0]]);
    let outer = g.function("outer", &[any(), any()], |_, args| {
        let once = call(&inner, &[args[0].tanh()]);
        vec![call(&inner, &once)[0].clone() + &args[1]]
    });
    let y = call(&outer, &[x.clone(), x.square()]);
    of(&[&x], call(&outer, &[y[0].clone(), x.clone()]), &[&x])
}

fn call_variable(g: &Graph) -> Result<Example> {
    let x = vector(g, "x", 2);
    let v = g.variable("v").init(Init::value([2.0f32, 3.0])).build();
    let f = g.function("stepped", &[any()], |_, args| {
        let before = v.read();
        v.assign_add(&args[0]);
        vec![&args[0] * before, v.read()]
    });
    let y = call(&f, std::slice::from_ref(&x));
    of(&[&x], y, &[&x, v.handle()])
}

fn call_embedding(g: &Graph) -> Result<Example> {
    let i = g.placeholder("i", DType::Int32, [3]);
    let t = table(g);
    let index = (DType::Int32, PartialShape::from_dims([Some(3)]));
    let f = g.function("rows", &[index], |_, args| {
        vec![t.gather(&args[0]).square()]
    });
    of(&[&i], call(&f, std::slice::from_ref(&i)), &[t.handle()])
}

fn call_loop(g: &Graph) -> Result<Example> {
    let (n, x) = (int(g, "n"), vector(g, "x", 2));
    let f = g.function("looped", &[any()], |g, args| {
        let y = while_loop(
            &[g.constant(0i32), args[0].clone()],
            |_, v| v[0].less(&n),
            |_, v| vec![&v[0] + 1, v[1].exp() * &x],
        );
        vec![y[1].clone()]
    });
    of(&[&n, &x], call(&f, &[&x * 0.5]), &[&x])
}

fn call_second(g: &Graph) -> Result<Example> {
    let x = vector(g, "x", 2);
    let f = g.function("cubed", &[any()], |_, args| vec![args[0].exp() * &args[0]]);
    let y = call(&f, std::slice::from_ref(&x));
    let dx = first(gradients(&y, std::slice::from_ref(&x))?)?;
    of(&[&x], vec![dx], &[&x])
}

/// A loop of v1's nodes, as imported graphs have them: `n` times `x = tanh(x) * a`.
fn v1_loop(g: &Graph) -> Result<Example> {
    let (n, x, a) = (int(g, "n"), vector(g, "x", 2), vector(g, "a", 2));
    let zero = g.constant(0i32);
    let mut def = GraphDef::default();
    let mut add = |name: &str, op: &str, dtype: DType, inputs: &[&str]| {
        let mut node = NodeDef {
            name: name.to_owned(),
            op: op.to_owned(),
            inputs: inputs.iter().map(|i| (*i).to_owned()).collect(),
            ..Default::default()
        };
        match op {
            "LoopCond" => {}
            "Const" => {
                node.attrs.set("dtype", dtype);
                node.attrs.set("value", Tensor::scalar(1i32));
            }
            _ => node.attrs.set("T", dtype),
        }
        if op == "Enter" {
            node.attrs.set("frame_name", "loop");
            let constant = name.starts_with("constant");
            node.attrs.set("is_constant", constant);
        }
        if op == "Merge" {
            node.attrs.set("N", 2i64);
        }
        def.nodes.push(node);
    };
    let (i, f) = (DType::Int32, DType::Float);
    let zero = zero.name();
    add("enter_i", "Enter", i, &[&zero]);
    add("enter_x", "Enter", f, &["x"]);
    add("constant_n", "Enter", i, &["n"]);
    add("constant_a", "Enter", f, &["a"]);
    add("merge_i", "Merge", i, &["enter_i", "next_i"]);
    add("merge_x", "Merge", f, &["enter_x", "next_x"]);
    add("less", "Less", i, &["merge_i", "constant_n"]);
    add("goes_on", "LoopCond", i, &["less"]);
    add("switch_i", "Switch", i, &["merge_i", "goes_on"]);
    add("switch_x", "Switch", f, &["merge_x", "goes_on"]);
    add("one", "Const", i, &["^body_x"]);
    add("body_x", "Identity", f, &["switch_x:1"]);
    add("more", "AddV2", i, &["switch_i:1", "one"]);
    add("tanh", "Tanh", f, &["body_x"]);
    add("times", "Mul", f, &["tanh", "constant_a"]);
    add("next_i", "NextIteration", i, &["more"]);
    add("next_x", "NextIteration", f, &["times"]);
    add("exit_x", "Exit", f, &["switch_x"]);
    g.import(&def)?;
    of(&[&n, &x, &a], vec![g.output("exit_x:0")?], &[&x, &a])
}

fn first(grads: Vec<Option<Gradient>>) -> Result<Output> {
    let grad = grads.into_iter().next().flatten();
    Ok(grad.context("no gradient")?.to_dense())
}
