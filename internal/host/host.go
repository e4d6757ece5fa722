// SPDX-License-Identifier: Apache-2.0

// Package host is the only way to the machine: files, commands, units, the kernel. No other package
// writes files or runs commands.
//
// A View reads and cannot write: planning gets a View and changes nothing, and the compiler proves
// it. A View and a Host may be the running machine ("/"), a root folder (an image, a mounted disk)
// or a simulated node.
package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"
)

// View reads a machine and never writes to it. Names are absolute paths as the machine's own
// processes see them: links inside are followed as if the root folder were "/", and nothing leads
// out of it.
type View interface {
	// Root says where the machine's files lie: "/" or the root folder.
	Root() string
	// Live says whether the running kernel, systemd and GPUs are this machine's; false in a root
	// folder.
	Live() bool
	// Runs says whether the machine's own programs can run: they do on the running machine, and in
	// a root folder that is baked.
	Runs() bool
	// Now is the machine's wall clock.
	Now() time.Time

	// ReadFile reads a whole regular file, following links. Files over MaxFile bytes and files that
	// are not regular (a FIFO, a device) are an error, so that no look can hang or exhaust memory.
	ReadFile(name string) ([]byte, error)
	// ReadAt reads a part of a regular file, as io.ReaderAt does: of a binary, a few pages tell the
	// version.
	ReadAt(name string, p []byte, off int64) (int, error)
	// Stat describes the file that name leads to, without its extended attributes. Lstat describes
	// name itself, also if it is a link, with them.
	Stat(name string) (Info, error)
	Lstat(name string) (Info, error)
	// Readlink returns what the link says, unresolved.
	Readlink(name string) (string, error)
	// ReadDir returns the names in a folder, sorted.
	ReadDir(name string) ([]string, error)
	// Resolve returns the path name leads to, free of links, still inside the root. The last part
	// need not exist.
	Resolve(name string) (string, error)
	// Trusted refuses names that users other than root could write to, or replace in one of the
	// folders on the way to them: the error is *Untrusted. If a name does not exist, it judges the
	// folders that do.
	Trusted(names ...string) error

	// Ask runs a command that only reads, and returns its standard output. Errors are
	// *CommandError. In a root folder that is not baked no command can run: the error is a Later.
	Ask(ctx context.Context, argv ...string) ([]byte, error)
	// AskWith is Ask with more environment variables, "NAME=VALUE", which replace the common ones:
	// what a kubeconfig gives its exec plugin may be a secret, and every user can read an argv.
	AskWith(ctx context.Context, env []string, argv ...string) ([]byte, error)
	// AskAbout asks about files that are not on the machine: it writes them into a private folder
	// and removes that afterwards. Scratch in argv and in the files is replaced by the folder's
	// name. Names in files are relative to it.
	AskAbout(ctx context.Context, files map[string][]byte, argv ...string) ([]byte, error)
	// Call makes one unary gRPC call that only reads to a daemon's socket, and returns the answer's
	// bytes. The error of a daemon that refuses is *CallError.
	Call(ctx context.Context, socket, method string, request []byte) ([]byte, error)
	// Fetch returns what a URL names, and verifies its size and digest. Errors are *FetchError.
	Fetch(ctx context.Context, r Request) ([]byte, error)
	// AskWeb returns the transport for an HTTP client of the machine. It refuses requests that
	// change something. In a root folder the error is a Later: the machine's identity and place are
	// not known yet.
	AskWeb(w Web) (http.RoundTripper, error)
	// OpenDevices lists the character devices that a process has open, each once. A process that
	// has ended has none.
	OpenDevices(pid int) ([]Device, error)
	// Room says how much space is left for files in the folder name, or the nearest one above it
	// that exists.
	Room(name string) (Room, error)
	// Unit describes a systemd unit. Where no systemd runs the error is a Later, but Enabled, Load
	// and Files are filled from the files all the same.
	Unit(ctx context.Context, name string) (Unit, error)
	// Driver asks the NVIDIA driver for the state of the GPUs, through NVML. *NoDriver where none
	// answers, a Later in a root folder.
	Driver(ctx context.Context) (Driver, error)
	// CUDA starts CUDA as a program in a pod does: for each list in a process that sees these
	// devices, by UUID, and no others. If all worked, it remembers the answers while of and the
	// lists, the boot, the loaded modules and the library stay the same; where of is "", it starts
	// CUDA anew and remembers nothing. A Later in a root folder.
	CUDA(ctx context.Context, of string, shown ...[]string) ([]CUDA, error)
}

// Host is a View that can also change the machine. Every method is durable when it returns: a power
// cut after it loses nothing, a power cut within it leaves the old or the new, never a mix.
type Host interface {
	View
	// WriteFile replaces or makes a file: a temporary file in the same folder, synced, renamed,
	// folder synced. A link at name is kept and its target written; another hard link to a replaced
	// file keeps the old. The folder must exist. attr.Xattrs is the whole set wanted, except labels
	// that cannot be removed; nil keeps those of the file that is replaced, or takes what the
	// folder's defaults give.
	WriteFile(name string, data []byte, attr Attr) error
	// WriteFiles makes or replaces files of a folder, by name, as WriteFile does, but syncs the
	// folder once, and replaces a link.
	WriteFiles(folder string, files map[string][]byte, attr Attr) error
	// Download gets what a URL names into a file, as WriteFile writes it, without holding it in
	// memory.
	Download(ctx context.Context, r Request, name string, attr Attr) error
	// Append adds data at the end of a file and syncs it; the file is made with mode 0600 where it
	// is missing. A power cut within it may leave a part of data: a file that does not end in a
	// newline gets one before the next data.
	Append(name string, data []byte) error
	// Note is Append that does not wait for the disk: a power cut may take data until Append has
	// added more.
	Note(name string, data []byte) error
	// Symlink makes name a link that says target, replacing a file or link in one step.
	Symlink(name, target string) error
	// Mkdir makes one folder.
	Mkdir(name string, attr Attr) error
	// SetAttr changes owner, mode and extended attributes of what name leads to, one after the
	// other: a power cut within it leaves each of them old or new, never more open than both.
	SetAttr(name string, attr Attr) error
	// Remove removes a file, a link (not its target) or an empty folder.
	Remove(name string) error
	// Replace makes name a file or a link, or removes it, but only if expected accepts what is
	// there when all is written and one step is left. Otherwise what is there stays, and the error
	// is Changed. A link at name is itself replaced.
	Replace(name string, with *Entry, expected func(found *Entry) bool) error
	// Rename gives a file another name in the same folder. It replaces nothing: fs.ErrExist.
	Rename(from, to string) error
	// Sweep removes the temporary files, links and folders that a killed gpuadm left in a folder,
	// which need not exist.
	Sweep(folder string) error

	// Do runs a command that changes something. Its children inherit the run lock.
	Do(ctx context.Context, argv ...string) ([]byte, error)
	// SetUnit enables, disables, starts, stops or restarts a unit, and waits until systemd says the
	// job is done; systemd reads changed unit files first. A daemon that says it is ready at once
	// may still die later. Where no systemd runs, SetUnit makes the links itself, and for a job the
	// error is a Later.
	SetUnit(ctx context.Context, name string, to UnitChange) error

	// DoWeb is AskWeb for requests that change something.
	DoWeb(w Web) (http.RoundTripper, error)

	// GPUs are named by PCI address. What the driver refuses is a *GPUError, *NoDriver where none
	// answers.

	// SetMIGMode asks for MIG mode on or off. On Ampere it holds after a reset; afterwards
	// GPU.Pending says what was asked.
	SetMIGMode(ctx context.Context, gpu string, on bool) error
	// ResetGPUs resets GPUs by nvidia-smi, since NVML has no call for it. *CommandError with
	// nvidia-smi's words if it refuses.
	ResetGPUs(ctx context.Context, gpus ...string) error
	// CreateInstance makes a GPU instance at exactly this place, without compute instances, and
	// returns its id.
	CreateInstance(ctx context.Context, gpu string, profile int, at Span) (id int, err error)
	// DestroyInstance destroys a GPU instance that holds no compute instance.
	DestroyInstance(ctx context.Context, gpu string, id int) error
	// CreateCompute makes a compute instance in a GPU instance; at is used where the driver can
	// place it, else the zero Span.
	CreateCompute(ctx context.Context, gpu string, instance, profile int, at Span) (id int, err error)
	// DestroyCompute destroys a compute instance that no process uses.
	DestroyCompute(ctx context.Context, gpu string, instance, id int) error
	// SetPersistence turns persistence mode on or off.
	SetPersistence(ctx context.Context, gpu string, on bool) error

	// Terminate asks a process to end: SIGTERM. If the process has ended already, that is no error.
	Terminate(pid int) error

	// Lock takes the machine's one run lock, or fails with *Busy. It never waits.
	Lock() (unlock func(), err error)
}

// MaxFile is the size in bytes above which ReadFile refuses a file.
const MaxFile = 64 << 20

// Info describes a file.
type Info struct {
	Mode   fs.FileMode // type and permission bits
	UID    int
	GID    int
	Size   int64             // bytes
	Ctime  time.Time         // last change of content or attributes, by the machine's wall clock
	Mtime  time.Time         // last change of content, as far as no program set another
	Xattrs map[string]string // extended attributes, nil if none; Stat leaves them out
	Device Device            // the numbers of a character device; Stat and Lstat alone
	Inode  uint64            // its number on its file system; 0 if it is not known
	Chattr string            // chattr(1): "i" for immutable, "a" for append-only; "" for none or unknown
}

// Room is what a file system has left for root.
type Room struct {
	Bytes uint64
	Files uint64 // inodes; the largest number where the file system does not count them

	ReadOnly bool // nothing can be written there
}

// Attr is what a file carries beside its bytes.
type Attr struct {
	Mode   fs.FileMode // permission bits with setuid, setgid and sticky
	UID    int
	GID    int
	Xattrs map[string]string
}

// Attr returns what another file needs to be like this one.
func (i Info) Attr() Attr {
	const kept = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	return Attr{
		Mode:   i.Mode & kept,
		UID:    i.UID,
		GID:    i.GID,
		Xattrs: i.Xattrs,
	}
}

// Unit describes a systemd unit.
type Unit struct {
	Load    string        // loaded, not-found, masked, …: systemd's LoadState
	Enabled string        // enabled, disabled, static, masked, …: systemd's UnitFileState
	Active  string        // active, inactive, failed, …: systemd's ActiveState; "" without systemd
	Sub     string        // systemd's SubState: auto-restart is activating, between two tries
	PID     int           // main process, 0 if none
	Ended   int           // how often it ended, and systemd has started it again: systemd's NRestarts
	Started time.Time     // when the main process started, by the wall clock; zero if it does not run
	Since   time.Duration // the same on the monotonic clock, from boot
	Uptime  time.Duration // the monotonic clock now, to compare Since with
	Files   []string      // unit file and drop-ins, in the order systemd reads them
	// Refused is the ExecStartPre= command that kept the unit's main process from starting, if the
	// unit has failed or waits to be started again; nil if none did.
	Refused []string
	// Outdated says that unit files changed since systemd read them: a restart by hand would not
	// see the change. SetUnit has them read.
	Outdated bool
}

// UnitChange says what to do with a unit. Empty fields change nothing.
type UnitChange struct {
	File string // "enable", "disable", "mask", "unmask"; "read": systemd reads its unit files again
	Job  string // "start", "stop", "restart", "reload"; "reset-failed": systemd forgets the failure
}

// Later reports that something cannot be read or made yet, and when it can: "first boot", or "once
// the driver answers".
type Later struct {
	Until string // for people
	When  When   // for programs, "" where none acts on it

	// Silent says which reader does not answer, and why, where an earlier change may make it
	// answer: "the driver does not answer: its module is not loaded". If no change does, the
	// state is unknown.
	Silent string
}

// When names what a Later waits for.
type When string

// What programs act on.
const (
	AtFirstBoot  When = "first-boot"
	InNewProcess When = "new-process"
	AfterReboot  When = "reboot" // the change's Why says why a reboot is needed
	// AnotherKernel: it is for a kernel that does not run, and nothing of this boot needs it.
	AnotherKernel When = "another-kernel"
)

// FirstBoot is the Later of what needs the live machine, in a root folder.
var FirstBoot = Later{Until: "first boot", When: AtFirstBoot}

// NewProcess is the Later of what this process cannot ask the driver any more: NoDriver.Again.
var NewProcess = Later{Until: "once a new process asks the driver", When: InNewProcess}

func (l Later) Error() string {
	return "not before " + strings.TrimPrefix(l.Until, "once ")
}

// Reboot reports that what was made holds only after a reboot.
type Reboot struct{ Why string }

func (r Reboot) Error() string { return "reboot needed: " + r.Why }

// Busy reports who holds the run lock.
type Busy struct {
	PID     int
	Command string // its argv, as ps shows it
	Orphan  bool   // a killed run has started it, and it outlives that run
}

func (b *Busy) Error() string {
	if b.PID == 0 {
		return "another gpuadm is at work"
	}
	if b.Orphan {
		return fmt.Sprintf("a command of a killed gpuadm run is still at work: process %d (%s)", b.PID, b.Command)
	}
	return fmt.Sprintf("another gpuadm run is at work: process %d (%s)", b.PID, b.Command)
}

// CommandError reports a command that could not be run or did not exit with 0.
type CommandError struct {
	Argv   []string
	Code   int    // exit status; -1 if a signal or gpuadm ended it
	Stderr string // the last lines, bounded
	Cause  error
}

func (e *CommandError) Error() string {
	s := fmt.Sprintf("cannot run %s: %v", e.Argv[0], e.Cause)
	if e.Stderr != "" {
		s += ": " + strings.ReplaceAll(e.Stderr, "\n", "; ") // an error is one line
	}
	return s
}

func (e *CommandError) Unwrap() error { return e.Cause }

// CallError is a daemon's refusal of a Call. Code is one of
// https://grpc.io/docs/guides/status-codes/.
type CallError struct {
	Code    int
	Message string // the daemon's words, bounded
}

// Unimplemented is the code of a service or method that the daemon does not have.
const Unimplemented = 12

func (e *CallError) Error() string {
	return fmt.Sprintf("gRPC status %d: %s", e.Code, e.Message)
}

// OverLimit is the cause if a command took longer than gpuadm allows for its kind. It does not come
// from --deadline.
type OverLimit struct{ Limit time.Duration }

func (o OverLimit) Error() string { return "no answer within " + o.Limit.String() }
func (OverLimit) Unwrap() error   { return context.DeadlineExceeded }

// FileError reports what could not be done to a file and why; errors.Is finds fs.ErrNotExist,
// syscall.ENOSPC and the like.
type FileError struct {
	Verb  string // read, write, remove, …
	Path  string // as it was asked for
	Leads string // where it leads, if links are on the way
	Cause error
	Note  string // the cause in better words than the kernel's

	Attribute Attribute // what keeps even root from it
}

// Attribute is an attribute of a file or folder that keeps even root from a change: chattr(1).
type Attribute struct {
	Of  string // the file or folder
	Set string // "i" or "a"; "" for none
}

func (a Attribute) String() string {
	switch a.Set {
	case "i":
		return "immutable (chattr +i)"
	case "a":
		return "append-only (chattr +a)"
	}
	return ""
}

func (e *FileError) Error() string {
	s := "cannot " + e.Verb + " " + e.Path
	if e.Leads != "" && e.Leads != e.Path {
		s += " (which leads to " + e.Leads + ")"
	}
	if e.Note != "" {
		return s + ": " + e.Note
	}
	return fmt.Sprintf("%s: %v", s, e.Cause)
}

func (e *FileError) Unwrap() error { return e.Cause }

// Failed words an error of a path that could not even be walked.
func Failed(verb, name string, err error) error {
	return &FileError{Verb: verb, Path: name, Cause: err}
}

// Kept is a session with the driver that several calls share.
type Kept struct {
	Session interface{ End() } // nil: none is open
}

type keptKey struct{}

// KeepDriver returns a context whose calls, by one goroutine, share one session with the driver:
// each session attaches GPUs that no process holds, which takes 1 to 3 seconds a GPU
// (https://docs.nvidia.com/deploy/driver-persistence/overview.html). The session begins with the
// first call; a reset, or end, ends it. Its answers leave out what only containers need, the UUID
// and the Share of a compute instance, and of a GPU's health all but that it is lost.
func KeepDriver(ctx context.Context) (keeping context.Context, end func()) {
	k := &Kept{}
	return context.WithValue(ctx, keptKey{}, k), k.End
}

// KeptOf is the session that calls with the context share, nil if they share none.
func KeptOf(ctx context.Context) *Kept {
	k, _ := ctx.Value(keptKey{}).(*Kept)
	return k
}

// End ends the session, if one is open.
func (k *Kept) End() {
	if k != nil && k.Session != nil {
		k.Session.End()
		k.Session = nil
	}
}

// Join is errors.Join with a text of one line.
func Join(errs ...error) error {
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	return joined{err}
}

type joined struct{ error }

func (j joined) Error() string { return strings.ReplaceAll(j.error.Error(), "\n", "; ") }

func (j joined) Unwrap() error { return j.error }

// TypeName says in words which kind of file has a mode: "a folder".
func TypeName(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeSymlink != 0:
		return "a link"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m.IsRegular():
		return "a regular file"
	}

	return "something"
}

// NotExist reports whether an error says that a file, a folder or a unit does not exist.
func NotExist(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// ShellWord returns a word as an operator types it into a shell, quoted if the shell needs quotes.
func ShellWord(word string) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	const plain = letters + "0123456789:@./_=,+%-"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Pause waits, or returns the context's error if that ends before.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
