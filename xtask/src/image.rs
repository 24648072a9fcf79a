//! The image and its ISO.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;
use crate::cli::Arch;
use crate::process::{need, succeed};

/// The root of the repository.
pub fn root() -> PathBuf {
    // This package is one folder below it.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above xtask/").to_path_buf()
}

/// How Rust's library for bare metal is had.
enum Library {
    /// Installed, or just downloaded.
    Prebuilt,
    /// To be built from its source.
    FromSource,
}

/// Sees to it that the target can be built for.
fn library(target: &str) -> Result<Library, Error> {
    let printed =
        Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let folder = printed.ok().map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    if folder.is_some_and(|folder| Path::new(&folder).is_dir()) {
        return Ok(Library::Prebuilt);
    }
    let rustup = |arguments: &[&str]| {
        complain!("rustup {}", arguments.join(" "));
        Command::new("rustup").args(arguments).status().is_ok_and(|status| status.success())
    };
    if rustup(&["target", "add", target]) {
        return Ok(Library::Prebuilt);
    }
    if rustup(&["component", "add", "rust-src"]) {
        complain!("no prebuilt core for {target}: building it from its source");
        return Ok(Library::FromSource);
    }
    Err(Error::Unusable(format!(
        "Rust's library for {target} is missing: run 'rustup target add {target}', or 'rustup component add rust-src' to have it built here"
    )))
}

/// How the image is compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// Optimized, with the assertions of the library and the kernel.
    Checked,
    /// Optimized, without: what is measured.
    Release,
}

/// Builds the image.
pub fn build(arch: Arch, profile: Profile) -> Result<PathBuf, Error> {
    let (root, target) = (root(), arch.target());
    // From the kernel's own folder: its .cargo/config.toml names the linker scripts.
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root.join("kernel"));
    cargo.args(["build", "--quiet", "--locked", "--target", target]);
    let subfolder = match profile {
        Profile::Checked => "debug",
        Profile::Release => {
            cargo.arg("--release");
            "release"
        }
    };
    let folder = root.join("target/kernel");
    cargo.arg("--target-dir").arg(&folder);
    if let Library::FromSource = library(target)? {
        cargo.env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=core,alloc");
    }
    succeed("building the image", &mut cargo)?;
    Ok(folder.join(target).join(subfolder).join("shootdown-kernel"))
}

/// Makes an ISO that boots the image by GRUB, from a CD or a USB stick, on a PC with a BIOS.
pub fn iso(image: &Path, command_line: &str) -> Result<PathBuf, Error> {
    const PACKAGES: &str =
        "apt-get install grub-common grub-pc-bin xorriso, or scripts/install-deps.sh metal-bochs";
    need("grub-mkrescue", PACKAGES)?;
    need("xorriso", PACKAGES)?;
    const PLATFORM: &str = "/usr/lib/grub/i386-pc";
    if !Path::new(PLATFORM).is_dir() {
        return Err(Error::Missing { program: PLATFORM.into(), hint: PACKAGES.into() });
    }
    let folder = root().join("target/kernel/iso");
    let grub = folder.join("tree/boot/grub");
    let file =
        |path: PathBuf| move |source| Error::File { path: path.display().to_string(), source };
    std::fs::create_dir_all(&grub).map_err(file(grub.clone()))?;
    let copy = folder.join("tree/boot/kernel");
    std::fs::copy(image, &copy).map_err(file(copy.clone()))?;
    let menu = format!("set timeout=0\nmultiboot2 /boot/kernel {command_line}\nboot\n");
    let config = grub.join("grub.cfg");
    std::fs::write(&config, menu).map_err(file(config.clone()))?;
    let iso = folder.join("shootdown.iso");
    let mut make = Command::new("grub-mkrescue");
    make.args(["-d", PLATFORM, "--compress=xz", "--fonts=", "--locales=", "--themes="]);
    make.arg("--install-modules=multiboot2 normal iso9660 biosdisk");
    make.arg("-o").arg(&iso).arg(folder.join("tree"));
    succeed("making the ISO", &mut make)?;
    Ok(iso)
}
