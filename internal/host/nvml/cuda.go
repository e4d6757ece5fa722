// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"golang.org/x/sys/unix"
)

// CUDAVerb is the verb by which gpuadm starts itself to start CUDA.
const CUDAVerb = "start-cuda"

// cudaLimit is how long a process may take to start CUDA. It takes longest where no
// nvidia-persistenced holds the GPUs.
const cudaLimit = 10 * time.Second

const cudaName = "libcuda.so.1"

// cudaQuestion is the child's input.
type cudaQuestion struct {
	Libraries []string `json:"libraries"` // the child loads the first that exists
	UVM       []string `json:"uvm"`       // names that the device of unified memory may have
}

// CUDA starts CUDA in children. In this process it would be too late for the next driver, and a
// library that hangs or crashes would take gpuadm with it.
type CUDA struct {
	question cudaQuestion
	self     string   // the program to start
	env      []string // more of the environment
	files    *files.Files
	record   string // where an answer is remembered
	after    func(time.Duration) <-chan time.Time
	limit    time.Duration // how long a child may wait without computing
	children func()        // is called for each child
}

// NewCUDA takes libcuda from the places of NVML. With a driver container the devices lie below its
// root, too, and on the machine only once something has made them. Source: gpu-operator,
// cmd/nvidia-validator (devRoot); nvidia-container-toolkit, pkg/nvcdi (devRoot).
func NewCUDA(files *files.Files) *CUDA {
	return &CUDA{
		question: defaultCUDA(),
		self:     "/proc/self/exe",
		files:    files,
		record:   "/run/gpuadm-cuda.json",
		after:    time.After,
		limit:    cudaLimit,
		children: func() {},
	}
}

func defaultCUDA() cudaQuestion {
	const uvm = "/dev/nvidia-uvm"
	return cudaQuestion{
		Libraries: driverLibraries(cudaName),
		UVM:       []string{uvm, path.Join(driverContainer, uvm)},
	}
}

// Within is the same, but for a child that may wait no longer than the limit without computing.
func (d *CUDA) Within(limit time.Duration) *CUDA {
	soon := *d
	soon.limit = min(limit, cudaLimit)
	return &soon
}

// Ask returns a remembered answer, if of is not "", or starts one child for each list, all at
// the same time.
func (d *CUDA) Ask(ctx context.Context, of string, shown [][]string) ([]host.CUDA, error) {
	before := d.identity(of, shown)
	if answers, ok := d.remembered(before); ok {
		return answers, nil
	}

	answers := make([]host.CUDA, len(shown))
	failed := make([]error, len(shown))
	var all sync.WaitGroup
	for i := range shown {
		all.Go(func() { answers[i], failed[i] = d.start(ctx, shown[i]) })
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	d.remember(before, d.identity(of, shown), answers)

	return answers, nil
}

// start has a child start CUDA.
func (d *CUDA) start(ctx context.Context, shown []string) (host.CUDA, error) {
	input, err := json.Marshal(d.question)
	if err != nil {
		return host.CUDA{Shown: shown}, err
	}
	env := append(d.env,
		"CUDA_VISIBLE_DEVICES="+strings.Join(shown, ","),
		// A client of a control daemon of MPS makes it start a server, or end another user's.
		// Without a daemon CUDA continues. Source: nvidia-cuda-mps-control(1);
		// https://docs.nvidia.com/deploy/mps, CUDA_MPS_PIPE_DIRECTORY.
		"CUDA_MPS_PIPE_DIRECTORY=/nonexistent",
	)

	d.children()
	q := question{
		self:  d.self,
		argv:  []string{CUDAVerb, string(input)},
		env:   env,
		limit: d.limit,
		most:  cudaLimit,
		sign:  hasComputed,
		every: d.limit,
		after: d.after,
	}
	r, err := q.ask(ctx)
	if err != nil || r.ended != "" {
		return host.CUDA{Shown: shown, Ended: r.ended, Late: r.late > 0}, err
	}

	answer := host.CUDA{Shown: shown}
	if json.Unmarshal(r.text, &answer) != nil {
		return host.CUDA{Shown: shown, Ended: "it ended without an answer"}, nil
	}
	answer.NoLibrary = printable(answer.NoLibrary)
	answer.Name = printable(answer.Name)
	answer.Library = printable(answer.Library)
	return answer, nil
}

// StartCUDA is the child: it starts CUDA and writes the answer to the parent or, if a person has
// typed the verb, to stdout.
func StartCUDA(input string) error {
	q := defaultCUDA()
	out := os.Stdout
	if input != "" {
		q = cudaQuestion{}
		if err := json.Unmarshal([]byte(input), &q); err != nil {
			return fmt.Errorf("internal error: cannot read what to ask CUDA: %w", err)
		}
		out = parent()
	}

	answer := callCUDA(q.Libraries)
	answer.NoUVM = openUVM(q.UVM) // after cuInit, which as root loads the module and makes the device
	return json.NewEncoder(out).Encode(answer)
}

// openUVM says why none of the names is a device that can be opened. The kernel module makes no
// device: nvidia-modprobe, udev's rules, or cuInit as root make it. Sources:
// open-gpu-kernel-modules, kernel-open/nvidia-uvm/uvm.c (no class of devices); nvidia-modprobe,
// modprobe-utils/nvidia-modprobe-utils.c (nvidia_uvm_mknod).
func openUVM(names []string) string {
	var why []string
	for _, name := range names {
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			if len(why) == 0 {
				why = append(why, err.Error())
			}
			continue
		}

		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		unix.Close(fd)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
			return ""
		}
		why = append(why, "it is not a device")
	}

	return strings.Join(why, ", ")
}

// cudaIdentity is what an answer is true of. All of it is read again before a remembered answer
// counts.
type cudaIdentity struct {
	Boot    string     `json:"boot"`
	Of      string     `json:"of"` // the driver and its GPUs, as the caller sees them now
	Shown   [][]string `json:"shown"`
	Modules []string   `json:"modules"` // as they were loaded: each load counts as another one
	Driver  string     `json:"driver"`  // the driver container, as it was started
	Loader  string     `json:"loader"`  // where the loader looks for libraries
}

// cudaRecord is an answer in which all worked.
type cudaRecord struct {
	cudaIdentity
	Library string `json:"library"`
	File    string `json:"file"`
	Devices []int  `json:"devices"`
	Codes   []int  `json:"codes"`
}

// identity reads what an answer is true of. The kernel gives a module's folder in sysfs a number
// that no folder before it had.
// Sources: the kernel's fs/kernfs/dir.c (__kernfs_new_node, idr_alloc_cyclic) and
// include/linux/kernfs.h (kernfs_ino). A driver container writes its file when it has loaded the
// modules, and removes it at its end. Sources: gpu-operator,
// assets/state-driver/0400_configmap.yaml, and cmd/nvidia-validator/main.go.
func (d *CUDA) identity(of string, shown [][]string) cudaIdentity {
	boot, _ := d.files.ReadFile("/proc/sys/kernel/random/boot_id")
	return cudaIdentity{
		Boot:    strings.TrimSpace(string(boot)),
		Of:      of,
		Shown:   shown,
		Modules: []string{fileID("/sys/module/nvidia"), fileID("/sys/module/nvidia_uvm")},
		Driver:  fileID("/run/nvidia/validations/.driver-ctr-ready"),
		Loader:  fileID("/etc/ld.so.cache"),
	}
}

// fileID tells a file from any other that was or will be at its name; "" if there is none.
func fileID(name string) string {
	var st unix.Stat_t
	if unix.Stat(name, &st) != nil {
		return ""
	}
	id := fmt.Sprintf("%x:%d", st.Dev, st.Ino)
	if st.Mode&unix.S_IFMT == unix.S_IFREG { // sysfs has times of its own
		id += fmt.Sprintf(":%d:%d.%09d", st.Size, st.Ctim.Sec, st.Ctim.Nsec)
	}
	return id
}

// remembered returns the answers of a record that is still true. A record that another user could
// have written does not count; without the device of unified memory no record counts.
func (d *CUDA) remembered(now cudaIdentity) ([]host.CUDA, bool) {
	if now.Boot == "" || now.Of == "" || !d.hasUVM() {
		return nil, false
	}
	if !d.onlyRootWrites(path.Dir(d.record)) || !d.onlyRootWrites(d.record) {
		return nil, false
	}
	text, err := d.files.ReadFile(d.record)
	if err != nil {
		return nil, false
	}

	var r cudaRecord
	if json.Unmarshal(text, &r) != nil || !reflect.DeepEqual(r.cudaIdentity, now) {
		return nil, false
	}
	if r.File == "" || r.File != fileID(r.Library) {
		return nil, false
	}
	return r.answers(now.Shown)
}

// answers returns the record's answers for these lists, if all worked.
func (r cudaRecord) answers(lists [][]string) ([]host.CUDA, bool) {
	if len(r.Devices) != len(lists) || len(r.Codes) != len(lists) {
		return nil, false
	}

	var all []host.CUDA
	for i, shown := range lists {
		c := host.CUDA{
			Shown:   shown,
			Library: r.Library,
			Code:    r.Codes[i],
			Devices: r.Devices[i],
		}
		if !c.Works() {
			return nil, false
		}
		all = append(all, c)
	}

	return all, true
}

// onlyRootWrites reports whether only root, or this process's own user, can have written a file.
func (d *CUDA) onlyRootWrites(name string) bool {
	i, err := d.files.Lstat(name)
	if err != nil || i.Mode&fs.ModeSymlink != 0 {
		return false
	}
	return i.Mode&0o022 == 0 && (i.UID == 0 || i.UID == os.Geteuid())
}

func (d *CUDA) hasUVM() bool {
	for _, name := range d.question.UVM {
		if i, err := d.files.Stat(name); err == nil && i.Mode&fs.ModeCharDevice != 0 {
			return true
		}
	}
	return false
}

// remember keeps answers in which all worked, if nothing that they are true of changed meanwhile.
// Where it cannot, as a user who is not root, CUDA is started again the next time.
func (d *CUDA) remember(before, after cudaIdentity, answers []host.CUDA) {
	if after.Of == "" || !reflect.DeepEqual(before, after) || len(answers) == 0 {
		return
	}

	library := answers[0].Library
	r := cudaRecord{
		cudaIdentity: after,
		Library:      library,
		File:         fileID(library),
	}
	for _, c := range answers {
		if !c.Works() || c.Library != library {
			return
		}
		r.Devices = append(r.Devices, c.Devices)
		r.Codes = append(r.Codes, c.Code)
	}

	text, err := json.Marshal(r)
	if err == nil {
		_ = d.files.WriteFile(d.record, append(text, '\n'), host.Attr{Mode: 0o644})
	}
}
