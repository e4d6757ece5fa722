// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"reflect"
	"strings"

	"golang.org/x/sys/unix"
)

// cudaIdentity is what an answer is true of. All of it is read again before a remembered answer counts.
type cudaIdentity struct {
	Boot    string     `json:"boot"`
	Of      string     `json:"of"` // the driver and its GPUs, as the caller sees them now
	Shown   [][]string `json:"shown"`
	Modules []string   `json:"modules"` // as they were loaded: another load of the same version is another one
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

// identity reads what an answer is true of. The kernel gives a module's folder in sysfs a number that no folder before it had.
// Sources: the kernel's fs/kernfs/dir.c (__kernfs_new_node, idr_alloc_cyclic) and include/linux/kernfs.h (kernfs_ino). A driver
// container writes its file when it has loaded the modules, and removes it at its end. Sources: gpu-operator,
// assets/state-driver/0400_configmap.yaml, and cmd/nvidia-validator/main.go.
func (d *cudaDoor) identity(of string, shown [][]string) cudaIdentity {
	boot, _ := d.files.ReadFile("/proc/sys/kernel/random/boot_id")
	return cudaIdentity{
		Boot: strings.TrimSpace(string(boot)), Of: of, Shown: shown,
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

// remembered returns the answers of a record that is true of now. One that another user could have written does not count, and neither
// does any where the device of unified memory has gone.
func (d *cudaDoor) remembered(now cudaIdentity) ([]CUDA, bool) {
	if !d.trusted(path.Dir(d.record)) || !d.trusted(d.record) || !d.hasUVM() || now.Boot == "" {
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
	if r.File == "" || r.File != fileID(r.Library) || len(r.Devices) != len(now.Shown) || len(r.Codes) != len(now.Shown) {
		return nil, false
	}
	var answers []CUDA
	for i, shown := range now.Shown {
		c := CUDA{Shown: shown, Library: r.Library, Code: r.Codes[i], Devices: r.Devices[i]}
		if !c.Works() {
			return nil, false
		}
		answers = append(answers, c)
	}
	return answers, true
}

// trusted says whether only root, or this process's own user, can have written there.
func (d *cudaDoor) trusted(name string) bool {
	i, err := d.files.Lstat(name)
	return err == nil && i.Mode&fs.ModeSymlink == 0 && i.Mode&0o022 == 0 && (i.UID == 0 || i.UID == os.Geteuid())
}

func (d *cudaDoor) hasUVM() bool {
	for _, name := range d.question.UVM {
		if i, err := d.files.Stat(name); err == nil && i.Mode&fs.ModeCharDevice != 0 {
			return true
		}
	}
	return false
}

// remember keeps answers in which all worked, if nothing that they are true of changed meanwhile. Where it cannot, as a user who is not
// root, CUDA is started again the next time.
func (d *cudaDoor) remember(before, after cudaIdentity, answers []CUDA) {
	if !reflect.DeepEqual(before, after) || len(answers) == 0 {
		return
	}
	r := cudaRecord{cudaIdentity: after, Library: answers[0].Library, File: fileID(answers[0].Library)}
	for _, c := range answers {
		if !c.Works() || c.Library != r.Library {
			return
		}
		r.Devices, r.Codes = append(r.Devices, c.Devices), append(r.Codes, c.Code)
	}
	text, err := json.Marshal(r)
	if err == nil {
		_ = d.files.WriteFile(d.record, append(text, '\n'), Attr{Mode: 0o644})
	}
}
