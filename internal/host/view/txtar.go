// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"

	"github.com/gpuadm/gpuadm/internal/host"
	"github.com/gpuadm/gpuadm/internal/host/files"
	"github.com/gpuadm/gpuadm/internal/mask"
)

// Txtar is all that was read, as a txtar archive, the form in which package simhost takes machines.
func (r *Recorder) Txtar() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b bytes.Buffer
	fmt.Fprintf(&b, "A recorded machine. Content is here only of what is listed as safe, secret-looking values are %q.\n-- sim.toml --\n", mask.Mark)
	b.Write(r.settings())
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if name != "/" {
			r.files[name].section(&b, name)
		}
	}
	return b.Bytes()
}

// simulation is sim.toml, as package simhost reads it.
type simulation struct {
	Live    bool               `toml:"live"`
	Now     time.Time          `toml:"now"`
	Booted  *time.Time         `toml:"booted,omitempty"`
	Absent  []string           `toml:"absent,omitempty"`
	Units   []simulatedUnit    `toml:"unit,omitempty"`
	Driver  *simulatedDriver   `toml:"driver,omitempty"`
	GPUs    []host.GPU         `toml:"gpu,omitempty"`
	Answers []simulatedCommand `toml:"command,omitempty"`
}

type simulatedUnit struct {
	Name    string     `toml:"name"`
	Load    string     `toml:"load,omitempty"`
	Enabled string     `toml:"enabled,omitempty"`
	Active  string     `toml:"active,omitempty"`
	Sub     string     `toml:"sub,omitempty"`
	PID     int        `toml:"pid,omitempty"`
	Started *time.Time `toml:"started,omitempty"`
	Files   []string   `toml:"files,omitempty"`
}

type simulatedDriver struct {
	Version string `toml:"version,omitempty"`
	NVML    string `toml:"nvml,omitempty"`
	CUDA    string `toml:"cuda,omitempty"`
	Why     string `toml:"why,omitempty"`
	Try     string `toml:"try,omitempty"`
	Code    string `toml:"code,omitempty"`
}

type simulatedCommand struct {
	Argv   []string `toml:"argv"`
	Stdout string   `toml:"stdout,omitempty"`
	Exit   int      `toml:"exit,omitempty"`
	Stderr string   `toml:"stderr,omitempty"`
}

// settings is the section sim.toml.
func (r *Recorder) settings() []byte {
	s := simulation{Live: r.Live(), Now: r.started.UTC(), Absent: slices.Sorted(maps.Keys(r.absent))}
	if r.uptime > 0 {
		s.Booted = utc(r.started.Add(-r.uptime))
	}
	for _, name := range slices.Sorted(maps.Keys(r.units)) {
		u := r.units[name]
		one := simulatedUnit{Name: name, Load: u.Load, Enabled: u.Enabled, Active: u.Active, PID: u.PID, Started: utc(u.Started), Files: u.Files}
		if u.Active == "activating" {
			one.Sub = u.Sub
		}
		s.Units = append(s.Units, one)
	}
	switch d := r.driver; {
	case r.none != nil:
		s.Driver = &simulatedDriver{Why: r.none.Why, Try: r.none.Try, Code: r.none.Code}
	case len(d.GPUs) > 0:
		s.Driver = &simulatedDriver{Version: d.Version, NVML: d.NVML, CUDA: d.CUDA}
		for i, g := range d.GPUs {
			s.GPUs = append(s.GPUs, anonymous(g, i))
		}
	}
	seen := map[string]bool{}
	for _, a := range slices.Backward(r.asked) { // the last answer of each counts
		failed := (*host.CommandError)(nil)
		key := strings.Join(a.argv, "\x00")
		if seen[key] || errors.As(a.err, &failed) && failed.Code < 0 { // not installed, or it did not end: no answer
			continue
		}
		seen[key] = true
		one := simulatedCommand{Argv: mask.Args(a.argv)}
		if strings.Contains(safeList, "\n$ "+path.Base(a.argv[0])+"\n") {
			one.Stdout = string(mask.Text(a.stdout))
		}
		if failed != nil {
			one.Exit, one.Stderr = failed.Code, mask.Message(failed.Stderr)
		}
		s.Answers = append(s.Answers, one)
	}
	data, _ := toml.Marshal(s) // it fails for no value of these types

	return bytes.ToValidUTF8(data, []byte("?"))
}

// utc is a time as a recording has it, nil for none.
func utc(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// anonymous is a GPU without what tells this machine from others.
func anonymous(g host.GPU, nth int) host.GPU {
	if g.UUID != "" {
		g.UUID = fmt.Sprintf("GPU-00000000-0000-4000-8000-%012x", nth)
	}
	if g.Serial != "" {
		g.Serial = fmt.Sprint(1320000000000 + nth)
	}
	if g.Fabric.Cluster != "" {
		g.Fabric.Cluster = "00000000-0000-4000-8000-000000000000"
	}
	g.Instances = slices.Clone(g.Instances)
	for i := range g.Instances {
		in := &g.Instances[i]
		in.Compute = slices.Clone(in.Compute)
		for j := range in.Compute {
			if c := &in.Compute[j]; c.UUID != "" {
				c.UUID = fmt.Sprintf("MIG-00000000-0000-4000-%04x-%08x%04x", nth, in.ID, c.ID)
			}
		}
	}

	return g
}

// section writes one file, folder or link with the markers it needs.
func (f *recorded) section(b *bytes.Buffer, name string) {
	head := strings.TrimPrefix(name, "/")
	if f.info.Mode.IsDir() {
		head += "/"
	}
	if strings.ContainsFunc(head, func(r rune) bool { return r <= ' ' || r == '"' || r == utf8.RuneError || r >= 0x7f }) {
		head = strconv.Quote(head)
	}
	data, markers := f.markers(name)
	for _, marker := range markers {
		head += " " + marker
	}
	fmt.Fprintf(b, "-- %s --\n%s", head, data)
}

func (f *recorded) markers(name string) (data []byte, markers []string) {
	i := f.info
	usual := fs.FileMode(0o644)
	switch {
	case f.link != "":
		return nil, []string{"link=" + f.link}
	case i.Mode.IsDir():
		usual = 0o755
	case i.Mode&fs.ModeNamedPipe != 0:
		markers = append(markers, "type=fifo")
	case i.Mode&fs.ModeSocket != 0:
		markers = append(markers, "type=socket")
	case i.Mode&fs.ModeCharDevice != 0:
		markers = append(markers, fmt.Sprintf("device=%d:%d", i.Device.Major, i.Device.Minor))
	case i.Mode&fs.ModeDevice != 0:
		markers = append(markers, "type=block")
	default:
		var known bool
		if f.read {
			data, known = safe(name, f.data)
		}
		if !known {
			markers = append(markers, fmt.Sprintf("size=%d", i.Size))
			break
		}
		switch {
		case !utf8.Valid(data) || bytes.ContainsAny(data, "\x00\r") || bytes.HasPrefix(data, []byte("-- ")) || bytes.Contains(data, []byte("\n-- ")): // no text of a txtar
			markers = append(markers, "base64")
			data = wrap(base64.StdEncoding.EncodeToString(data))
		case len(data) > 0 && data[len(data)-1] != '\n':
			markers = append(markers, "nonl")
			data = append(slices.Clone(data), '\n')
		}
	}
	if mode := i.Attr().Mode; mode != usual {
		markers = append(markers, fmt.Sprintf("mode=%04o", files.UnixMode(mode)))
	}
	if i.UID != 0 || i.GID != 0 {
		markers = append(markers, fmt.Sprintf("owner=%d:%d", i.UID, i.GID))
	}
	for _, x := range slices.Sorted(maps.Keys(i.Xattrs)) {
		if strings.HasPrefix(x, "security.") || strings.HasPrefix(x, "system.") { // not user.*: who knows what is in there
			markers = append(markers, "xattr="+x+"=0s"+base64.StdEncoding.EncodeToString([]byte(i.Xattrs[x])))
		}
	}
	if i.Chattr != "" {
		markers = append(markers, "chattr="+i.Chattr)
	}
	if !kernelFile(name) {
		markers = append(markers, "ctime="+i.Ctime.UTC().Format(time.RFC3339Nano))
	}

	return data, markers
}

func wrap(s string) []byte {
	var b bytes.Buffer
	for len(s) > 0 {
		n := min(len(s), 76)
		b.WriteString(s[:n] + "\n")
		s = s[n:]
	}
	return b.Bytes()
}
