//! What each machine is known not to show: files in `kernel/expect/`, a case and a reason on each
//! line.

use crate::Error;
use crate::cli::MachineArgs;
use crate::image::root;

/// A case whose negative control shows nothing on some machine.
pub struct Unobservable {
    pub case: String,
    pub why: String,
}

/// What is known of this machine; nothing where there is no file, or on real CPUs.
pub fn unobservable(machine: &MachineArgs) -> Result<Vec<Unobservable>, Error> {
    let (name, arch) = (machine.machine, machine.arch);
    let suffix = machine.bochs_cpu.suffix();
    let path = root().join(format!("kernel/expect/{name}-{arch}{suffix}.txt"));
    if machine.kvm || !path.exists() {
        return Ok(Vec::new());
    }
    let name = path.display().to_string();
    let text = std::fs::read_to_string(&path)
        .map_err(|source| Error::File { path: name.clone(), source })?;
    let mut known = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((case, why)) = line.split_once(char::is_whitespace) else {
            let number = number + 1;
            return Err(Error::Unusable(format!("{name}:{number}: give a case and a reason")));
        };
        known.push(Unobservable { case: case.into(), why: why.trim().into() });
    }
    Ok(known)
}
