//! The hot paths of the library on this host; the same as `shootdown bench hot`.

use criterion::{Criterion, criterion_group, criterion_main};
use shootdown_lab::hot::{Hot, Path};

fn hot(criterion: &mut Criterion) {
    let hot = Hot::new();
    for path in Path::ALL {
        let name = match Hot::operations(path) {
            1 => path.name().to_owned(),
            n => format!("{} (x{n})", path.name()),
        };
        criterion.bench_function(&name, |b| b.iter(|| hot.once(path)));
    }
}

criterion_group!(benches, hot);
criterion_main!(benches);
