// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// Driver is what the loaded NVIDIA driver says through NVML.
type Driver struct {
	Version string // 580.95.05
	NVML    string // the library's own version, which must be the driver's
	CUDA    string // 13.0: the newest CUDA it supports
	GPUs    []GPU  // in the order of their PCI addresses
}

// GPU is one GPU as the driver sees it.
type GPU struct {
	Address string // 0000:17:00.0, as sysfs writes it
	Index   int    // NVML's, which is also nvidia-smi's and mig-parted's
	Minor   int    // of /dev/nvidiaN; -1 if unknown
	UUID    string // GPU-…
	Serial  string // "" where the board has none
	Name    string // NVIDIA H100 80GB HBM3
	Device  string // PCI device and vendor id as mig-parted's filters write it: 0x233010DE
	Sub     string // PCI subsystem id: 0x16C110DE
	Arch    string // turing, ampere, ada-lovelace, hopper, blackwell, …; "" if unknown
	Compute string // compute capability: 9.0
	Memory  uint64 // bytes
	Lost    string // why it does not answer ("it has fallen off the bus"); the fields below are empty then

	ECC        string // on, off, "" where it has none
	RemapFails bool   // a row could not be remapped: the board must be replaced
	RemapWaits bool   // a remapped row waits for a reset

	Uncorrected uint64 // memory errors that ECC could not correct, since the driver started the GPU
	Slowed      string // why the board slows it down: heat, power-brake, hardware; "" if it does not

	Licence string // a guest's of NVIDIA vGPU: licensed, unlicensed, expired; "" where it needs none

	// Only DriverWithin asks for these.
	Recovery   string // what the driver asks for; "" where it does not say (before 565)
	LinksDown  []int  `json:",omitempty" toml:",omitempty"` // NVLinks that carry nothing
	Prohibited bool   // its compute mode lets no program use it
	ECCWaits   string `json:",omitempty" toml:",omitempty"` // on, off: the mode after a reset, if it is another one
	Celsius    int    `json:",omitempty" toml:",omitempty"` // its temperature; 0 where unknown
	SlowsAt    int    `json:",omitempty" toml:",omitempty"` // degrees at which it slows itself down; 0 where unknown
	PowerLimit int    // watts; 0 where unknown
	PowerUsual int    // the board's default, in watts

	Fabric     Fabric
	Persistent bool  // persistence mode
	Clients    []int // processes with a context on it, MIG instances included; ascending

	MIG       bool // it can be partitioned
	Mode      bool // MIG mode now
	Pending   bool // MIG mode after a reset
	Profiles  []Profile
	Instances []Instance // GPU instances, by id
}

// Recovery names what a driver asks for, by its number in NVML's field 230 and in Xid 154: nvml.h
// and the change log of NVML's API; NV2080_CTRL_GPU_RECOVERY_ACTION in
// https://github.com/NVIDIA/open-gpu-kernel-modules. The meaning of each is in internal/faults.
func Recovery(action uint64) string {
	names := []string{
		"none", "reset", "reboot", "drain-p2p", "drain-reset",
		"imex", "bus-reset", "system-reboot",
	}
	if action >= uint64(len(names)) {
		return "action " + strconv.FormatUint(action, 10)
	}
	return names[action]
}

// Unlicensed says what is wrong with the GPU's licence, "" if nothing. A licence has hours of
// grace: the GPU may work until they are over.
func (g GPU) Unlicensed() string {
	switch g.Licence {
	case "unlicensed":
		return "has no vGPU licence"
	case "expired":
		return "has a vGPU licence that has expired"
	}
	return ""
}

// Fabric is a GPU's registration with NVLink's fabric manager.
type Fabric struct {
	State   string // "" (it has no fabric), not-started, in-progress, completed
	Status  string // "" or NVML's error of a completed registration that failed
	Faults  string // what its health mask says is wrong; ""
	Cluster string // UUID
	Clique  uint32
}

// Span is a place on a GPU: memory slices for GPU instances, compute slices for compute instances.
type Span struct{ Start, Size int }

// Profile is a kind of GPU instance that a GPU offers.
type Profile struct {
	ID      int    // the driver's, as nvidia-smi mig -lgip shows it: 19
	Enum    int    // NVML's NVML_GPU_INSTANCE_PROFILE_…
	Name    string // 1g.10gb+me, as NVML says it, or as nvidia-smi would where NVML has no name
	Slices  int    // compute slices
	Max     int    // of them on an empty GPU
	Memory  uint64 // bytes
	Places  []Span // where it may lie, in memory slices
	Compute []ComputeProfile
}

// ComputeProfile is a kind of compute instance that a GPU instance of a profile offers.
type ComputeProfile struct {
	ID     int // the driver's
	Enum   int // NVML's NVML_COMPUTE_INSTANCE_PROFILE_…
	Slices int
	Max    int
}

// Instance is a GPU instance.
type Instance struct {
	ID      int
	Profile int // Profile.ID
	At      Span
	Compute []ComputeInstance // by id; none: its creation was not completed
	Clients []int             // processes that use it; ascending
}

// ComputeInstance is a compute instance.
type ComputeInstance struct {
	ID      int
	Profile int // ComputeProfile.ID
	At      Span
	UUID    string // MIG-…, of the device that containers get; "" where the driver does not say
	Share   Share
}

// Share is the part of its GPU that the device of a compute instance has; zero if the driver does
// not say.
type Share struct {
	Memory  uint64 // bytes
	SMs     int    // multiprocessors
	Slices  int    // of the GPU instance
	Compute int    // slices of the compute instance

	// Engines, which the compute instances of one GPU instance share.
	Copy     int
	Decoders int
	Encoders int
	JPEG     int
	OFAs     int
}

// NoDriver reports that no NVIDIA driver answers, and why.
type NoDriver struct {
	Why string // "the kernel module nvidia is not loaded"
	Try string // what to do about it
	// Code is NVML's name of its answer, LIBRARY_NOT_FOUND; "" where NVML was not asked.
	Code string
	// Again says that only this process gets no answer: it has loaded the library of a driver that
	// was replaced since.
	Again bool
}

func (e *NoDriver) Error() string { return "cannot ask the NVIDIA driver: " + e.Why }

// Awaited is the Later of what only the driver can say: it is unknown unless a change of the run
// makes the driver answer.
func (e *NoDriver) Awaited() Later {
	return Later{
		Until:  "once the driver answers",
		Silent: "the driver does not answer: " + e.Why,
	}
}

// Overdue is the code of a driver that has not answered in time. A call of its library may hang,
// and cannot be cut short.
const Overdue = "OVERDUE"

// NoAnswer is the error of a driver that has not answered for this long.
func NoAnswer(limit time.Duration) *NoDriver {
	return &NoDriver{
		Why:  fmt.Sprintf("the driver has not answered for %v", limit),
		Try:  "journalctl --dmesg --grep 'NVRM|Xid' says what it found; a driver that hangs ends with a reboot",
		Code: Overdue,
	}
}

// Stuck is the code of a driver that has answered for a part of its GPUs, and hangs at another one.
const Stuck = "STUCK"

// NoFurtherAnswer is the error of a driver that has answered for all GPUs but these. If there are
// none, it hangs at the end of the session.
func NoFurtherAnswer(limit time.Duration, gpus []string) *NoDriver {
	none := NoAnswer(limit)
	none.Code = Stuck
	if len(gpus) > 0 {
		none.Why += " about " + strings.Join(gpus, ", ")
	}
	return none
}

// GPUError reports a call that the driver refused.
type GPUError struct {
	Call string // NVML's name of it: nvmlDeviceSetMigMode
	GPU  string // PCI address
	Code string // NVML's name of the answer: IN_USE
}

// Is makes errors.Is find fs.ErrPermission if rights are missing.
func (e *GPUError) Is(target error) bool {
	return target == fs.ErrPermission && e.Code == "NO_PERMISSION"
}

func (e *GPUError) Error() string {
	return fmt.Sprintf("cannot change GPU %s: %s: %s", e.GPU, e.Call, e.Code)
}

// ProfileName returns the name of a GPU instance profile as nvidia-smi composes it, for drivers
// that have no names in NVML (before R525). The memory in the name is the profile's share of the
// GPU's, in eighths, times the GPU's size in whole GiB. memory is the GPU's, in bytes.
func ProfileName(p Profile, memory uint64) string {
	gib := uint64(0)
	if memory > 0 {
		const whole = 1 << 30
		eighths := min((8*p.Memory+memory-1)/memory, 8)
		gib = (eighths*((memory+whole-1)/whole) + 4) / 8
	}

	return fmt.Sprintf("%dg.%dgb%s", p.Slices, gib, profileAttribute(p.Enum))
}

// profileAttribute returns the end of a profile's name: NVML_GPU_INSTANCE_PROFILE_… of nvml.h.
func profileAttribute(enum int) string {
	switch enum {
	case 7, 8: // 1_SLICE_REV1, 2_SLICE_REV1
		return "+me"
	case 10, 11, 12, 17:
		return "+gfx"
	case 13, 14:
		return "-me"
	case 15, 16:
		return "+me.all"
	}
	return ""
}

// ComputeProfiles returns what a GPU instance with this many compute slices offers by rule: NVML
// answers only once such an instance exists. The ids are NVML's enumeration, as in every dump of
// nvidia-smi mig -lcip so far; the profile of the whole instance comes last.
func ComputeProfiles(slices int) []ComputeProfile {
	var offered []ComputeProfile
	for enum, size := range []int{1, 2, 3, 4, 7} { // NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, …: nvml.h
		threeOfFour := size == 3 && slices == 4
		if size > slices || threeOfFour {
			continue
		}
		offered = append(offered, ComputeProfile{
			ID:     enum,
			Enum:   enum,
			Slices: size,
			Max:    slices / size,
		})
	}

	return offered
}
