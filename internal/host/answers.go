// SPDX-License-Identifier: Apache-2.0

package host

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// CUDA is what CUDA answered in a new process.
type CUDA struct {
	Shown     []string `json:"-"`       // the devices that the process was shown, by UUID
	Library   string   `json:"library"` // the libcuda that was loaded
	NoLibrary string   `json:"noLibrary,omitempty"`
	Code      int      `json:"code"`            // what cuInit or cuDeviceGetCount answers: 0, 802
	Name      string   `json:"name,omitempty"`  // the library's name of it: CUDA_ERROR_SYSTEM_NOT_READY
	Devices   int      `json:"devices"`         // how many CUDA counts
	NoUVM     string   `json:"noUVM,omitempty"` // why /dev/nvidia-uvm cannot be opened
	Ended     string   `json:"-"`               // why the process gave no answer
	Late      bool     `json:"-"`               // it was not waited for any longer
}

// What CUDA answers. Sources: cuda.h of the CUDA toolkit;
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html.
const (
	CUDANotInitialized = 3
	CUDABusy           = 46
	CUDANoDevice       = 100
	CUDASystemNotReady = 802
	CUDAMismatch       = 803
	CUDANoCompat       = 804
)

// Works reports whether CUDA started and counts the devices that the process was shown,
// and no others.
func (c CUDA) Works() bool {
	switch {
	case c.Ended != "", c.NoLibrary != "", c.NoUVM != "":
		return false
	case c.Code == CUDANoDevice:
		return len(c.Shown) == 0
	}
	return c.Code == 0 && c.Devices == len(c.Shown)
}

// Device is a character device that a process has open.
type Device struct {
	Major uint32
	Minor uint32
	// Name is the path by which the process opened it, in the process's own mount namespace: the
	// process may have chosen it.
	Name string
}

// A Request says what to get, from where, and through which proxy.
type Request struct {
	URL    string // http, https, or file for a path on the machine
	SHA256 string // hex digest the bytes must have; "" = any
	Max    int64  // bytes; more is an error
	Via    Via
}

// Via says through which proxy the network is reached.
type Via struct {
	HTTP   string   // URL of the proxy for http, "" = none
	HTTPS  string   // URL of the proxy for https, "" = none
	No     []string // hosts, domains and networks that are reached directly
	CAFile string   // PEM file on the machine with certificates to trust, in addition to the machine's own
}

// FetchError reports what could not be fetched.
type FetchError struct {
	URL    string // without user and password
	Status int    // HTTP status, 0 where there was no answer
	Cause  error
}

func (e *FetchError) Error() string {
	return fmt.Sprintf("cannot get %s: %v", e.URL, e.Cause)
}

func (e *FetchError) Unwrap() error { return e.Cause }

// Entry is a link or a regular file. A nil Entry says that nothing is there.
type Entry struct {
	Link string // what the link says; "" for a file
	Data []byte // of a file
	Attr Attr   // of a file; Replace takes nil Xattrs for what the folder's defaults give
}

// Changed reports that Replace changed nothing, because another process changed the file meanwhile.
type Changed struct {
	During string // what gpuadm did: writing, removing
}

func (c Changed) Error() string {
	return "it was changed while gpuadm was " + c.During + " it"
}

// Untrusted reports files and folders that users other than root can change: these users could
// choose what root does.
type Untrusted struct {
	Name   string // the first of the names in question that depends on one of them
	Owners []Fault
	Modes  []Fault
}

// A Fault says why one file or folder is not trusted.
type Fault struct {
	Why  string // "user 1000 owns", "its group can write to"
	Name string
	For  string // the first of the names in question that depends on it
}

func (u *Untrusted) Error() string {
	all := slices.Concat(u.Owners, u.Modes)
	first := all[slices.IndexFunc(all, func(f Fault) bool { return f.For == u.Name })]
	return fmt.Sprintf("cannot trust %s: %s %s", u.Name, first.Why, first.Name)
}

// Fix says why each file is not trusted, those that Name depends on first, and which commands
// change that. The machine's files are below root.
func (u *Untrusted) Fix(root string) (whys, commands []string) {
	var others []string
	for _, fix := range []struct {
		command string
		faults  []Fault
	}{
		{"chown root:root", u.Owners},
		{"chmod go-w", u.Modes},
	} {
		if len(fix.faults) == 0 {
			continue
		}
		command := fix.command
		for _, fault := range fix.faults {
			name := path.Join(root, fault.Name)
			command += " " + ShellWord(name)
			if fault.Name == u.Name {
				name = "it"
			}
			why := fault.Why + " " + name
			if fault.For == u.Name {
				whys = append(whys, why)
			} else {
				others = append(others, why)
			}
		}

		commands = append(commands, command)
	}

	return append(whys, others...), commands
}

// Do replaces these in its arguments.
const (
	// Self becomes the command with which a shell that the program starts, sh(1), runs this gpuadm.
	Self = "{this gpuadm}"
	// StatusFd becomes the descriptor on which apt writes its progress.
	StatusFd = "{progress descriptor}"
)

// Scratch becomes the name of the private folder in the arguments and files of AskAbout.
const Scratch = "{gpuadm scratch folder}"

// UnitError reports what could not be done to a unit and why.
type UnitError struct {
	Verb, Unit string
	Cause      error
}

func (e *UnitError) Error() string {
	return "cannot " + e.Verb + " " + e.Unit + ": " + e.Cause.Error()
}

func (e *UnitError) Unwrap() error { return e.Cause }

// Web says how an HTTP client of the machine reaches a server, and which CAs it trusts. The zero
// Web uses no proxy, and trusts the machine's own certificates.
type Web struct {
	Socket string // a Unix socket that answers in place of the URL's host; "" for the network
	Via    Via    // proxies, and certificates to trust in addition to the machine's own
	Roots  []byte // PEM certificates to trust in place of the machine's and Via.CAFile; nil for those
	// Queries says that all requests only read, whatever their method: EC2's query API uses POST
	// for all requests. The other side decides what the machine's role may do.
	Queries bool
	// Cert returns the certificate to show, at each handshake; nil for none.
	Cert func() (*tls.Certificate, error)
}

// A Part reads parts of a file: build information is a few hundred bytes of a binary of 50 MB.
type Part struct {
	View interface {
		ReadAt(name string, p []byte, off int64) (int, error)
	}
	Name string
}

func (p Part) ReadAt(b []byte, off int64) (int, error) {
	return p.View.ReadAt(p.Name, b, off)
}

// Public reports whether every user can read a file, by its mode and the modes of the folders
// that it is in.
func Public(v View, name string) bool {
	real, err := v.Resolve(name)
	if err != nil {
		return false
	}

	needed := fs.FileMode(0o004) // to read the file; then, to pass each folder
	for {
		i, err := v.Stat(real)
		if err != nil || i.Mode&needed == 0 {
			return false
		}
		if real == "/" {
			return true
		}
		needed = 0o001
		real = path.Dir(real)
	}
}

// BootID names the present boot; "" where it cannot be read, and in a root folder, which never
// boots.
func BootID(v View) string {
	if !v.Live() {
		return ""
	}
	id, _ := v.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}
