//! Nearest names, for errors about unknown ones.

/// Up to two of `names` that are nearest to `wanted`, nearest first.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut all: Vec<_> = names.map(|n| (distance(wanted, n), n)).collect();
    all.sort_unstable();
    all.into_iter().take(2).map(|(_, n)| n.to_owned()).collect()
}

/// Edit distance (insert, delete, replace), in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_comes_first() {
        let names = ["zen4", "zen4-vm", "haswell-ep-48"];
        assert_eq!(nearest("zen5", names.into_iter())[0], "zen4");
        assert_eq!(nearest("haswell", names.into_iter()).len(), 2);
    }
}
