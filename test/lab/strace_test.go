// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuadm/gpuadm/test/check"
	"github.com/gpuadm/gpuadm/test/lab"
	"github.com/gpuadm/gpuadm/test/must"
)

// mostCalls is how many system calls an apply with nothing to do may make on a host with 8 GPUs,
// those of Go's scheduler and memory left out. It makes about 800, and nvidia-ctk runtime configure
// 410. What the time costs is TestLabConvergedRatio's to say.
const mostCalls = 1000

// TestLabStrace: an apply that has nothing to do writes to standard output, standard error and the
// lock alone, asks systemd over one connection, and starts no child. It makes few system calls.
func TestLabStrace(t *testing.T) {
	t.Parallel()
	each(t, []string{"2.4"}, func(t *testing.T, o lab.Options) {
		n := boot(t, o)
		n.gpuadm(0, "apply")
		const log = "/run/strace"
		r := n.Exec("strace", "-f", "-y", "-s", "0", "-o", log, "gpuadm", "apply")
		must.That(t, r.Exit == 0 && r.Stdout == "Nothing to do.\n", "strace of apply: %s", r)
		seen, listed := map[string]int{}, map[string]int{}
		calls, asked := 0, 0
		for line := range strings.Lines(n.Get(log)) {
			if counts(line) {
				calls++
			}
			if strings.Contains(line, " connect(") && (strings.Contains(line, "/run/dbus/") || strings.Contains(line, "/run/systemd/")) {
				asked++
			}
			if m := unitFolder.FindStringSubmatch(line); m != nil {
				if listed[m[1]]++; listed[m[1]] > 1 {
					t.Errorf("listed again: %s", line)
				}
			}

			what, bad := judge(line)
			if what == "" {
				continue
			}
			seen[what]++
			check.That(t, !bad, "not to be done: %s", line)
		}

		check.That(t, seen["execve"] == 1 && seen["write to standard output"] != 0, "strace saw no apply: %v", seen)
		t.Logf("%4d system calls", calls)
		check.That(t, calls <= mostCalls && calls >= 100, "%d system calls, not at most %d", calls, mostCalls)
		check.That(t, len(listed) >= 3, "of systemd's folders these were listed: %v", listed)
		check.That(t, asked == 1, "%d connections to ask systemd, not one to the message bus", asked)
		for _, what := range slices.Sorted(maps.Keys(seen)) {
			t.Logf("%4d × %s", seen[what], what)
		}
	})
}

// unitFolder takes the name of one of systemd's folders out of a line that opens it to list it.
var unitFolder = regexp.MustCompile(`openat\(\d+<([^>]*/systemd/(?:system|generator)[^>/]*)>, "\.", .*O_DIRECTORY`)

// call takes the name and the arguments out of a line of strace -f: "123 write(1</dev/pts/0>,
// ""..., 5) = 5".
var call = regexp.MustCompile(`^\d+ +([a-z0-9_]+)\((.*)`)

// byTime are the system calls of Go's scheduler and memory, of which there are more on a slow
// machine and under strace.
var byTime = regexp.MustCompile(`^(futex|nanosleep|epoll_p?wait|sched_yield|tgkill|rt_sig\w+|getpid|gettid|mmap|munmap|mprotect|madvise|sigaltstack|clone3?|rseq|set_robust_list|exit)$`)

// counts says whether a line of strace -f begins a system call of those that come as often on a
// slow machine.
func counts(line string) bool {
	m := call.FindStringSubmatch(line)
	return m != nil && !byTime.MatchString(m[1])
}

// changing are the system calls that a converged apply must not make, whatever their arguments.
var changing = []string{
	"rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat",
	"mkdir", "mkdirat", "rmdir", "mknod", "mknodat",
	"chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "fchownat", "lchown",
	"truncate", "ftruncate", "fallocate", "fsync", "fdatasync", "sync", "syncfs",
	"utime", "utimes", "utimensat", "setxattr", "fsetxattr", "lsetxattr", "removexattr",
	"mount", "umount2", "kill",
}

// judged are all system calls that judge has something to say of. strace lets a program make the
// others at full speed if it is told so: --seccomp-bpf in strace(1). A name after a question mark may
// be unknown to it.
var judged = append([]string{
	"execve", "fork", "vfork", "clone", "clone3", "open", "openat", "openat2", "creat", "flock",
	"write", "writev", "pwrite64", "pwritev", "pwritev2", "sendfile", "splice", "copy_file_range",
	"sendmsg", "sendto", "sendmmsg",
}, changing...)

// judge says what a line of strace tells of, "" if it does not matter, and whether it is something
// that a converged apply must not do.
func judge(line string) (what string, bad bool) {
	m := call.FindStringSubmatch(line)
	if m == nil {
		return "", false
	}
	name, args := m[1], m[2]
	switch name {
	case "execve":
		return name, !strings.Contains(args, `"/usr/local/sbin/gpuadm"`)
	case "fork", "vfork":
		return name, true
	case "clone", "clone3":
		return "new thread", !strings.Contains(args, "CLONE_THREAD")
	case "open", "openat", "openat2", "creat":
		if !strings.Contains(args, "O_WRONLY") && !strings.Contains(args, "O_RDWR") && !strings.Contains(args, "O_CREAT") && name != "creat" {
			return "open for reading", false
		}
		if strings.Contains(args, `"/run/gpuadm.lock"`) || strings.Contains(args, `"gpuadm.lock"`) {
			return "open of the lock", false
		}
		return "open for writing", !strings.Contains(args, `"/dev/null"`)
	case "write", "writev", "pwrite64", "pwritev", "pwritev2", "sendfile", "splice", "copy_file_range":
		return written(args)
	case "sendmsg", "sendto", "sendmmsg":
		return "message to systemd", !strings.Contains(args, "socket:") && !strings.Contains(args, "UNIX")
	case "flock":
		return "flock", !strings.Contains(args, "/run/gpuadm.lock")
	}

	if slices.Contains(changing, name) {
		return name, true
	}
	return "", false
}

// written says where a write goes: strace -y prints the descriptor with what it leads to.
func written(args string) (what string, bad bool) {
	switch fd, _, _ := strings.Cut(args, ","); {
	case strings.HasPrefix(fd, "1<"):
		return "write to standard output", false
	case strings.HasPrefix(fd, "2<"):
		return "write to standard error", false
	case strings.Contains(fd, "/run/gpuadm.lock>"):
		return "write to the lock", false
	case strings.Contains(fd, "<socket:"), strings.Contains(fd, "<UNIX"):
		return "message to systemd", false
	case strings.Contains(fd, "<anon_inode:[eventfd]"):
		return "wake of the Go runtime", false
	}
	return "write to a file", true
}

// ran counts the programs that strace -f -e trace=execve saw begin. Where another thread is heard
// of while the kernel starts one, its line is cut in two: "execve(… <unfinished ...>", and later
// "<... execve resumed>) = 0".
func ran(log string) map[string]int {
	count, cut := map[string]int{}, map[string]string{}
	for line := range strings.Lines(log) {
		pid, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		text = strings.TrimSpace(text)
		if before, is := strings.CutSuffix(text, " <unfinished ...>"); is {
			cut[pid] = before
			continue
		}
		if _, rest, is := strings.Cut(text, " resumed>"); is && strings.HasPrefix(text, "<... execve") {
			text = cut[pid] + rest
		}
		if m := begun.FindStringSubmatch(text); m != nil {
			count[m[1]]++
		}
	}

	return count
}

var begun = regexp.MustCompile(`^execve\("([^"]*)", .* = 0$`)

// TestRan: a line that strace cuts in two counts once, a program that is not there not at all.
func TestRan(t *testing.T) {
	got := ran(`1 execve("/bin/a", ["a"], 0x1 /* 5 vars */) = 0
2     execve("/bin/b", ["b"], 0x1 /* 4 vars */ <unfinished ...>
1     execve("/bin/none", ["none"], 0x1 /* 4 vars */) = -1 ENOENT (No such file or directory)
3     execve("/bin/c", ["c"], 0x1 /* 4 vars */ <unfinished ...>
2     <... execve resumed>) = 0
2     execve("/bin/b", ["b"], 0x1 /* 4 vars */) = 0
3     <... execve resumed>) = -1 ENOENT (No such file or directory)
2     +++ exited with 0 +++
`)
	want := map[string]int{"/bin/a": 1, "/bin/b": 2}
	check.That(t, maps.Equal(got, want), "ran %v, want %v", got, want)
}

// argvOf takes the words out of a line of strace -v: execve("/usr/bin/apt-get", ["apt-get", "-y"],
// […
var (
	argvOf = regexp.MustCompile(`execve\("([^"]*)", \[(.*?)\], \[`)
	quoted = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
)

// transactions are the command lines in a log of strace -f -v -e trace=execve that change packages:
// of apt-get and dnf, not those that simulate, ask, or fetch.
func transactions(log string) [][]string {
	var list [][]string
	for line := range strings.Lines(log) {
		m := argvOf.FindStringSubmatch(line)
		if m == nil || strings.Contains(line, "ENOENT") {
			continue
		}
		var argv []string
		for _, word := range quoted.FindAllStringSubmatch(m[2], -1) {
			argv = append(argv, word[1])
		}
		has := func(words ...string) bool {
			return slices.ContainsFunc(argv, func(word string) bool {
				return slices.Contains(words, word)
			})
		}

		switch filepath.Base(m[1]) {
		case "apt-get":
			if !has("install", "remove", "purge", "dist-upgrade") || has("-s", "--simulate", "--dry-run", "-d", "--download-only", "--print-uris") {
				continue
			}
		case "dnf", "dnf-3", "yum":
			if !has("install", "remove", "upgrade", "downgrade", "swap", "distro-sync", "shell", "do", "replay") || has("--assumeno", "--downloadonly", "repoquery", "mark") {
				continue
			}
		default:
			continue
		}

		list = append(list, argv)
	}

	return list
}

// TestTransactions: what counts as one.
func TestTransactions(t *testing.T) {
	got := transactions(`1 execve("/usr/bin/apt-get", ["apt-get", "-s", "install", "a=1"], ["PATH=/usr/bin"]) = 0
1 execve("/usr/bin/apt-get", ["apt-get", "-y", "install", "a=1"], ["PATH=/usr/bin"]) = 0
1 execve("/usr/local/bin/apt-get", ["apt-get", "-y", "install", "a=1"], ["PATH=/usr/bin"]) = -1 ENOENT (No such file or directory)
2 execve("/usr/bin/apt-get", ["apt-get", "update"], ["PATH=/usr/bin"]) = 0
3 execve("/usr/bin/dnf", ["dnf", "-y", "install", "b"], ["PATH=/usr/bin"] <unfinished ...>
3 execve("/usr/bin/dnf", ["dnf", "--assumeno", "install", "b"], ["PATH=/usr/bin"]) = 0
`)
	want := [][]string{{"apt-get", "-y", "install", "a=1"}, {"dnf", "-y", "install", "b"}}
	check.That(t, slices.EqualFunc(got, want, slices.Equal), "%v, want %v", got, want)
}

// oneTransaction runs gpuadm apply for the stages of packages under strace, which shall exit with 0
// after exactly one command line that changes packages.
func oneTransaction(t *testing.T, h *lab.Host, args ...string) {
	t.Helper()
	// gpg-agent, which dnf leaves running, must not keep strace, nor strace the test: so it is no
	// child of the test's and has none of its pipes.
	const log, trace = "/run/strace.argv", `exec strace -D -f --seccomp-bpf -v -s 4096 -e trace=execve -e signal=none -o "$0" gpuadm --no-color "$@" >/run/said 2>&1`
	r := h.Exec(slices.Concat([]string{"sh", "-c", trace, log}, args)...)
	if r.Exit != 0 {
		t.Errorf("gpuadm %s: want exit 0, it is %d: %s", strings.Join(args, " "), r.Exit, h.Get("/run/said"))
	}
	if made := transactions(h.Get(log)); len(made) != 1 {
		t.Errorf("gpuadm %s: want one transaction, there are %d:", strings.Join(args, " "), len(made))
		for _, argv := range made {
			t.Errorf("\t%s", strings.Join(argv, " "))
		}
	}
}
