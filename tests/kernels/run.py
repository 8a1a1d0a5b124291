#!/usr/bin/env python3
"""Tries every feature of longfat on Debian's kernels, each in a virtual machine of its own.

  tests/kernels/run.py                          Debian 12's kernel, the one of its backports, as apt serves them here, and the
                                                newest that Debian serves
  tests/kernels/run.py --kernel 6.12            that one alone
  tests/kernels/run.py --publish docs/measurements/kernels.md

The machine's root is an initramfs made of this host's own files; nothing of this host is changed but files below
target/kernels. What is tried, and since which kernel it is to work, says features.toml: below that kernel a trial must
end with exit code 3. The BPF crate's own tests run in there as well, on kernels that have what they need. Under
emulation (no /dev/kvm that works) it takes some minutes a kernel; timing in there decides nothing. A machine that does not
come up is tried once more, which is said.

Exit codes: 0 all as the table expects; 1 something else; 2 failed; 3 this host lacks a program for it.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "target" / "kernels"
TOOLS = ["bash", "ip", "tc", "nft", "ethtool", "kmod", "setsid"]
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "depmod": "kmod",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
# Where modules are that the trials may want: of the network, and what those need.
MODULES = ["net", "lib", "crypto", "arch/x86/crypto", "drivers/net"]
# The oldest kernel on which the BPF crate's own tests have all they need.
TESTS_SINCE = (6, 6)
# What the Python programs in those tests import, and what Python itself does without being asked.
PYTHON_MODULES = "encodings.idna, os, site, socket, struct, subprocess, sys, time"
# Where Debian's newest kernel is, whatever the sources of this host.
DEBIAN, NEWEST_SUITE = "http://deb.debian.org/debian", "trixie-backports"
DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
# How long a machine may take for everything.
LIMIT_S = 2400


def version(text):
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def backports():
    """Options by which apt looks into the suite with Debian's newest kernel, and leaves this host's sources alone."""
    place = WORK / "apt"
    (place / "lists/partial").mkdir(parents=True, exist_ok=True)
    (place / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
    (place / "sources").write_text(f"deb [signed-by={DEBIAN_KEYS}] {DEBIAN} {NEWEST_SUITE} main\n")
    settings = {"Dir::Etc::SourceList": place / "sources", "Dir::Etc::SourceParts": "/dev/null",
                "Dir::State::Lists": place / "lists", "Dir::Cache": place / "cache"}
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    subprocess.run(["apt-get", *options, "update", "-qq"], check=True)
    return options


def newest(series, options):
    """The newest cloud kernel of a series that apt serves; of any series for 'newest'."""
    listed = subprocess.run(["apt-cache", *options, "search", "-n", r"^linux-image-.*-cloud-amd64$"],
                            check=True, capture_output=True, text=True).stdout
    names = [line.split(" ")[0] for line in listed.splitlines()]
    pattern = r"\d+" if series == "newest" else re.escape(series)
    meant = [name for name in names if re.match(rf"linux-image-{pattern}\.\d", name)]
    if not meant:
        sys.exit(f"kernels: apt serves no linux-image-{series}.*-cloud-amd64; is its suite in the sources?")
    return max(meant, key=lambda name: [int(part) for part in re.findall(r"\d+", name.split("-cloud")[0])])


def image_in(tree):
    """The kernel of an unpacked package and its release, where there is one."""
    for image in tree.glob("boot/vmlinuz-*"):
        return image, image.name.removeprefix("vmlinuz-")
    for image in tree.glob("usr/lib/modules/*/vmlinuz"):
        return image, image.parent.name
    return None


def unpacked(package, options):
    tree = WORK / package
    if not image_in(tree):
        downloads = WORK / "packages"
        downloads.mkdir(parents=True, exist_ok=True)
        wanted = [package]
        for name in wanted:
            subprocess.run(["apt-get", *options, "download", "-qq", name], check=True, cwd=downloads,
                           stderr=subprocess.DEVNULL)
            file = next(downloads.glob(f"{name}_*.deb"))
            subprocess.run(["dpkg-deb", "-x", file, tree], check=True)
            # Newer kernels come in parts: the image's package then only names them.
            needs = subprocess.run(["dpkg-deb", "-f", file, "Depends"], check=True, capture_output=True, text=True).stdout
            wanted += [need for need in re.findall(r"linux-(?:binary|modules)-\S+", needs) if need not in wanted]
    return tree


def libraries(program):
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return sorted(set(re.findall(r"/[^ )]+", said)))


def put(root, source, target):
    place = root / str(target).lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place)
    for library in libraries(source):
        into = root / library.lstrip("/")
        if not into.exists():
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, into)


def applets(root):
    put(root, shutil.which("busybox"), "/usr/bin/busybox")
    listed = subprocess.run(["busybox", "--list"], check=True, capture_output=True, text=True).stdout.split()
    for applet in set(listed) - {"busybox", "ip", "tc", "modprobe", "insmod", "lsmod", "sh"} - set(TOOLS):
        (root / "usr/bin" / applet).symlink_to("busybox")


def base(root):
    for directory in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "run", "tmp", "root",
                      "var", "trials", "tests"]:
        (root / directory).mkdir(parents=True)
    for name in ["bin", "sbin", "lib", "lib64"]:
        (root / name).symlink_to(f"usr/{name}")
    (root / "var/run").symlink_to("/run")
    applets(root)
    for tool in TOOLS:
        put(root, shutil.which(tool), f"/usr/bin/{tool}")
    (root / "usr/bin/sh").symlink_to("bash")
    for name in ["modprobe", "insmod", "lsmod"]:
        (root / "usr/sbin" / name).symlink_to("../bin/kmod")
    for name in ["ip", "tc", "nft", "ethtool"]:
        (root / "usr/sbin" / name).symlink_to(f"../bin/{name}")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost vm\n")
    (root / "etc/nsswitch.conf").write_text("hosts: files\npasswd: files\ngroup: files\n")


def python(root):
    """This Python and the modules that programs in the tests import, where they are here."""
    program = pathlib.Path(sys.executable).resolve()
    script = f"import {PYTHON_MODULES}; print(*(getattr(m, '__file__', None) or '' for m in sys.modules.values()), sep='\\n')"
    said = subprocess.run([program, "-I", "-S", "-c", script], check=True, capture_output=True, text=True).stdout
    for file in [program, *said.split()]:
        put(root, file, file)
    (root / "usr/bin/python3").unlink(missing_ok=True)
    (root / "usr/bin/python3").symlink_to(program)


def modules(root, tree, release):
    source = next(path for path in [tree / "lib/modules" / release, tree / "usr/lib/modules" / release]
                  if path.is_dir())
    target = root / "usr/lib/modules" / release
    for place in MODULES:
        if (source / "kernel" / place).is_dir():
            shutil.copytree(source / "kernel" / place, target / "kernel" / place)
    for file in source.glob("modules.*"):
        shutil.copy(file, target)
    subprocess.run(["depmod", "-b", root, release], check=True, stderr=subprocess.DEVNULL)


def test_programs(profile):
    """The BPF crate's tests, built as cargo builds them."""
    build = ["cargo", "test", "--locked", "-p", "longfat-kernel", "--no-run", "--message-format=json"]
    said = subprocess.run(build + profile, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    artifacts = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    built = [one for one in artifacts if one.get("executable") and one.get("profile", {}).get("test")]
    return {one["target"]["name"]: one["executable"] for one in built}


def initramfs(work, tree, release, features, program, tests):
    root = work / "root"
    shutil.rmtree(work, ignore_errors=True)
    base(root)
    stripped = work / "longfat"
    subprocess.run(["strip", "-o", stripped, program], check=True)
    put(root, stripped, "/usr/bin/longfat")
    modules(root, tree, release)
    for number, feature in enumerate(feature for feature in features if "trial" in feature):
        (root / "trials" / f"{number:02}-{feature['name']}").write_text(feature["trial"] + "\n")
    if tests:
        python(root)
    for name, path in tests.items():
        subprocess.run(["strip", "-o", work / "test", path], check=True)
        put(root, work / "test", f"/tests/{name}")
    for file in [ROOT / "experiments/smoke.toml", *HERE.glob("files/*")]:
        shutil.copy(file, root / "root")
    shutil.copy(HERE / "guest.sh", root / "init")
    (root / "init").chmod(0o755)
    image = work / "initramfs"
    with image.open("wb") as out:
        names = subprocess.run(["find", ".", "-print0"], cwd=root, check=True, capture_output=True).stdout
        subprocess.run(["cpio", "--null", "-o", "-H", "newc", "--quiet", "-R", "0:0"], cwd=root, input=names,
                       stdout=out, check=True)
    shutil.rmtree(root)
    return image


# An emulated machine's time passes by its instructions, 2 ns each, and not while nothing runs in it. So it is the same
# however busy this host is, and takes no leaps. Linux 6.1 does not come up so, and has the host's time.
EMULATED = ["-icount", "shift=1,sleep=off"]


def boot(kernel, image, console, limit_s, accelerator, timing=()):
    processor = "host" if accelerator == "kvm" else "max"
    arguments = ["qemu-system-x86_64", "-machine", "q35", "-accel", accelerator, "-cpu", processor, "-smp", "2",
                 "-m", "4096", "-display", "none", "-no-reboot", "-nic", "none", "-kernel", kernel, "-initrd", image,
                 "-append", "console=ttyS0 panic=-1 loglevel=3 mitigations=off", "-serial", f"file:{console}"]
    arguments += timing
    try:
        quiet = subprocess.DEVNULL if accelerator == "kvm" else None  # a machine that cannot says so at length
        subprocess.run(arguments, stdin=subprocess.DEVNULL, stderr=quiet, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        pass
    return console.read_text(errors="replace") if console.exists() else ""


def accelerator(kernel, work):
    """kvm where a guest's kernel speaks under it: nested virtualization may be there in name only."""
    if not os.access("/dev/kvm", os.W_OK):
        return "tcg"
    empty = work / "empty"
    empty.write_bytes(b"")
    said = boot(kernel, empty, work / "probe.txt", 15, "kvm")
    return "kvm" if "Kernel panic" in said else "tcg"


def expected(feature, release):
    since = feature.get("since")
    return 3 if since and version(release) < version(since) else 0


def judged(features, release, said):
    """Per trial: what it gave, what it was to give, and its last words."""
    results = []
    for feature in features:
        if "trial" not in feature:
            continue
        name = re.escape(feature["name"])
        found = re.search(rf"BEGIN \d+-{name}\r?\n(.*?)TRIAL {name} (\d+)", said, re.S)
        code = int(found[2]) if found else None
        words = [line.strip() for line in found[1].splitlines()] if found else ["it never ended"]
        results.append({"name": feature["name"], "does": feature["does"], "since": feature.get("since"),
                        "expected": expected(feature, release), "code": code, "said": words[-4:]})
    return results


def doctor_agrees(said, results):
    """Features on which 'longfat doctor' and the trial differ."""
    found = re.search(r"DOCTOR-BEGIN\r?\n(.*?)DOCTOR-END", said, re.S)
    if not found:
        return ["longfat doctor said nothing"]
    works = {one["name"]: one["works"] for one in json.loads(found[1])["features"]}
    return [f"{one['name']}: the trial ended with {one['code']}, doctor says works={works[one['name']]}"
            for one in results if works.get(one["name"]) != (one["code"] == 0)]


def tried(series, features, program, tests):
    options = backports() if series == "newest" else []
    package = series if series.startswith("linux-image") else newest(series, options)
    tree = unpacked(package, options)
    kernel, release = image_in(tree)
    work = WORK / f"run-{release}"
    inside = tests if version(release) >= TESTS_SINCE else {}
    image = initramfs(work, tree, release, features, program, inside)
    by = accelerator(kernel, work)
    print(f"kernels: {release} under {by}, initramfs of {image.stat().st_size >> 20} MiB", file=sys.stderr, flush=True)
    begun = time.monotonic()
    timing = EMULATED if by == "tcg" and version(release) >= TESTS_SINCE else []
    said, boots = boot(kernel, image, work / "console.txt", LIMIT_S, by, timing), 1
    if "UP " not in said:
        # An emulated processor's time passes in leaps, which a kernel may take for a hang of its own.
        print(f"kernels: {release} did not come up, and is tried once more; its last words:", file=sys.stderr)
        print("".join(f"  {line}\n" for line in said.splitlines()[-4:]), end="", file=sys.stderr, flush=True)
        said, boots = boot(kernel, image, work / "console.txt", LIMIT_S, by, timing), 2
    image.unlink()
    (work / "longfat").unlink()
    results = judged(features, release, said)
    codes = dict(re.findall(r"TEST (\S+) (\d+)", said))
    own = [{"name": name, "code": int(codes[name]) if name in codes else None} for name in inside]
    differs = doctor_agrees(said, results)
    wrong = [one for one in results if one["code"] != one["expected"]]
    return {"release": release, "accelerator": by, "seconds": round(time.monotonic() - begun), "boots": boots, "features": results,
            "tests": own, "doctor": differs, "is_complete": "DOWN" in said,
            "as_expected": not wrong and not differs and "DOWN" in said and all(one["code"] == 0 for one in own)}


def shown(outcome):
    again = ", came up at the second try" if outcome["boots"] > 1 else ""
    print(f"\n{outcome['release']} ({outcome['accelerator']}, {outcome['seconds']} s{again})")
    for one in outcome["features"]:
        is_right = one["code"] == one["expected"]
        print(f"  {'ok   ' if is_right else 'WRONG'}  {one['name']:<16} exit code {one['code']}, expected {one['expected']}")
        if not is_right:
            print("".join(f"           {line}\n" for line in one["said"]), end="")
    for test in outcome["tests"]:
        print(f"  {'ok   ' if test['code'] == 0 else 'WRONG'}  tests: {test['name']}")
    for line in outcome["doctor"]:
        print(f"  doctor differs: {line}")
    if not outcome["is_complete"]:
        print("  WRONG  the machine did not end in order; see console.txt below target/kernels")


def own_tests(outcome):
    """What became of the BPF crate's tests, in a few words."""
    failed = [one["name"] for one in outcome["tests"] if one["code"] != 0]
    if not outcome["tests"]:
        return "not run"
    return f"failed: {', '.join(failed)}" if failed else f"{len(outcome['tests'])} programs pass"


def how(outcome):
    again = ", at the second boot" if outcome["boots"] > 1 else ""
    return f"{outcome['accelerator']}, {outcome['seconds']} s{again}"


def page(outcomes, features):
    word = {0: "works", 3: "refused: 3"}
    row = lambda first, second, cells: f"| {first} | {second} | " + " | ".join(cells) + " |"
    lines = ["# Kernels", "", "| | |", "|---|---|", f"| date | {datetime.date.today()} |",
             "| command | `make test-kernels PUBLISH=docs/measurements/kernels.md`, which writes this page |",
             f"| machine | {os.cpu_count()} cores; each kernel in a virtual machine of its own |", "",
             "Every feature is tried in a virtual machine with Debian's kernel. *Refused: 3* is exit code 3 with the name of what is missing, before",
             "anything is touched. `longfat doctor` is asked in there, too, and must say of each feature what its trial found. Timing in there",
             "decides nothing.", "", row("feature", "from Linux", [outcome["release"] for outcome in outcomes]),
             "|---|---|" + "---|" * len(outcomes)]
    for feature in (feature for feature in features if "trial" in feature):
        codes = [next(one["code"] for one in outcome["features"] if one["name"] == feature["name"]) for outcome in outcomes]
        lines.append(row(feature["does"], feature.get("since", "any"), [word.get(code, f"failed: {code}") for code in codes]))
    since = ".".join(map(str, TESTS_SINCE))
    lines.append(row("`longfat doctor` says so", "any", ["no" if outcome["doctor"] else "yes" for outcome in outcomes]))
    lines.append(row("the BPF crate's own tests", since, [own_tests(outcome) for outcome in outcomes]))
    lines.append(row("emulator and time", "", [how(outcome) for outcome in outcomes]))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="append", metavar="SERIES", help="6.1, 6.12, newest or a package's name")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/longfat", metavar="FILE")
    parser.add_argument("--no-tests", action="store_true", help="leave the BPF crate's tests out")
    parser.add_argument("--test", action="append", metavar="NAME", help="that one of the BPF crate's test programs, and no feature")
    parser.add_argument("--dev", action="store_true", help="its tests as 'cargo test' builds them, not optimized")
    parser.add_argument("--publish", type=pathlib.Path, metavar="FILE", help="write the table of outcomes there")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    absent = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if absent:
        print(f"kernels: install these packages first: {' '.join(absent)}", file=sys.stderr)
        return 3
    if not args.program.is_file():
        print(f"kernels: {args.program} is not there; build it, or give --program FILE", file=sys.stderr)
        return 2
    features = tomllib.loads((HERE / "features.toml").read_text())["feature"]
    tests = {} if args.no_tests else test_programs([] if args.dev else ["--release"])
    if args.test:
        if unknown := set(args.test) - set(tests):
            print(f"kernels: no test program is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(tests))}", file=sys.stderr)
            return 2
        features, tests = [], {name: tests[name] for name in args.test}
    outcomes = [tried(series, features, args.program, tests) for series in args.kernel or ["6.1", "6.12", "newest"]]
    print(json.dumps(outcomes, indent=1)) if args.json else [shown(outcome) for outcome in outcomes]
    if args.publish:
        args.publish.write_text(page(outcomes, features))
    return 0 if all(outcome["as_expected"] for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
