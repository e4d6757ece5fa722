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

// Txtar returns all that was read as a txtar archive, the form in which package simhost reads
// machines.
func (r *Recorder) Txtar() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b bytes.Buffer
	fmt.Fprintf(&b, "A recorded machine. Content is here only of what is listed as safe, secret-looking values are %q.\n", mask.Mark)
	b.WriteString("-- sim.toml --\n")
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

// settings returns the section sim.toml.
func (r *Recorder) settings() []byte {
	s := simulation{
		Live:    r.Live(),
		Now:     r.started.UTC(),
		Absent:  slices.Sorted(maps.Keys(r.absent)),
		Units:   r.simulatedUnits(),
		Driver:  r.simulatedDriver(),
		Answers: r.simulatedCommands(),
	}
	if r.uptime > 0 {
		s.Booted = utc(r.started.Add(-r.uptime))
	}
	if r.none == nil {
		for i, g := range r.driver.GPUs {
			s.GPUs = append(s.GPUs, anonymous(g, i))
		}
	}

	data, _ := toml.Marshal(s) // it fails for no value of these types
	return bytes.ToValidUTF8(data, []byte("?"))
}

func (r *Recorder) simulatedUnits() (units []simulatedUnit) {
	for _, name := range slices.Sorted(maps.Keys(r.units)) {
		u := r.units[name]
		simulated := simulatedUnit{
			Name:    name,
			Load:    u.Load,
			Enabled: u.Enabled,
			Active:  u.Active,
			PID:     u.PID,
			Started: utc(u.Started),
			Files:   u.Files,
		}
		if u.Active == "activating" {
			simulated.Sub = u.Sub
		}
		units = append(units, simulated)
	}
	return units
}

func (r *Recorder) simulatedDriver() *simulatedDriver {
	d := r.driver
	switch {
	case r.none != nil:
		return &simulatedDriver{
			Why:  r.none.Why,
			Try:  r.none.Try,
			Code: r.none.Code,
		}
	case len(d.GPUs) > 0:
		return &simulatedDriver{Version: d.Version, NVML: d.NVML, CUDA: d.CUDA}
	}

	return nil
}

// simulatedCommands returns the last answer of each command.
func (r *Recorder) simulatedCommands() (commands []simulatedCommand) {
	seen := map[string]bool{}
	for _, a := range slices.Backward(r.asked) {
		failed := (*host.CommandError)(nil)
		noAnswer := errors.As(a.err, &failed) && failed.Code < 0 // it is not installed, or did not end
		key := strings.Join(a.argv, "\x00")
		if seen[key] || noAnswer {
			continue
		}
		seen[key] = true

		command := simulatedCommand{Argv: mask.Args(a.argv)}
		if strings.Contains(safeList, "\n$ "+path.Base(a.argv[0])+"\n") {
			command.Stdout = string(mask.Text(a.stdout))
		}
		if failed != nil {
			command.Exit = failed.Code
			command.Stderr = mask.Message(failed.Stderr)
		}
		commands = append(commands, command)
	}

	return commands
}

// utc returns a time as a recording has it, nil for none.
func utc(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// anonymous replaces the identifiers of a GPU that tell this machine from others. nth makes the new
// ones unique.
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
			c := &in.Compute[j]
			if c.UUID != "" {
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
	if strings.ContainsFunc(head, needsQuotes) {
		head = strconv.Quote(head)
	}
	data, markers := f.markers(name)
	for _, marker := range markers {
		head += " " + marker
	}
	fmt.Fprintf(b, "-- %s --\n%s", head, data)
}

func needsQuotes(r rune) bool {
	return r <= ' ' || r >= 0x7f || r == '"'
}

// markers returns the section's content, and what stands after its name.
func (f *recorded) markers(name string) (data []byte, markers []string) {
	i := f.info
	if i.Mode&fs.ModeSymlink != 0 {
		return nil, []string{"link=" + linkText(f.link)}
	}

	usual := fs.FileMode(0o644)
	switch {
	case i.Mode.IsDir():
		usual = 0o755
	case i.Mode.IsRegular():
		data, markers = f.content(name)
	default:
		markers = []string{typeMarker(i)}
	}

	return data, append(markers, attrMarkers(name, i, usual)...)
}

// linkText returns what a link says in a form that a marker can hold: in base64 after 0s if it has a
// space, as that of a deleted program has. The text of a link that could not be read is empty.
func linkText(link string) string {
	if strings.HasPrefix(link, "0s") || strings.ContainsFunc(link, needsQuotes) {
		return "0s" + base64.StdEncoding.EncodeToString([]byte(link))
	}
	return link
}

// typeMarker returns the marker of a file that is not regular.
func typeMarker(i host.Info) string {
	switch {
	case i.Mode&fs.ModeNamedPipe != 0:
		return "type=fifo"
	case i.Mode&fs.ModeSocket != 0:
		return "type=socket"
	case i.Mode&fs.ModeCharDevice != 0:
		return fmt.Sprintf("device=%d:%d", i.Device.Major, i.Device.Minor)
	}
	return "type=block"
}

// content returns a regular file's content in a form that txtar can hold, or its size alone.
func (f *recorded) content(name string) (data []byte, markers []string) {
	known := false
	if f.read && (f.isFlags || isListed(name)) {
		data, known = safe(name, f.data)
	}
	switch {
	case !known:
		return nil, []string{fmt.Sprintf("size=%d", f.info.Size)}
	case !isTxtarText(data):
		return wrap(base64.StdEncoding.EncodeToString(data)), []string{"base64"}
	case len(data) > 0 && data[len(data)-1] != '\n':
		return append(slices.Clone(data), '\n'), []string{"nonl"}
	}

	return data, nil
}

// isTxtarText reports whether txtar holds a text as it is: it must not look like the header of a
// section.
func isTxtarText(data []byte) bool {
	if !utf8.Valid(data) || bytes.ContainsAny(data, "\x00\r") {
		return false
	}
	return !bytes.HasPrefix(data, []byte("-- ")) && !bytes.Contains(data, []byte("\n-- "))
}

// attrMarkers returns the markers of a file's attributes, without its usual mode and owner.
func attrMarkers(name string, i host.Info, usual fs.FileMode) (markers []string) {
	if mode := i.Attr().Mode; mode != usual {
		markers = append(markers, fmt.Sprintf("mode=%04o", files.UnixMode(mode)))
	}
	if i.UID != 0 || i.GID != 0 {
		markers = append(markers, fmt.Sprintf("owner=%d:%d", i.UID, i.GID))
	}
	for _, x := range slices.Sorted(maps.Keys(i.Xattrs)) {
		// user.* may hold anything.
		if strings.HasPrefix(x, "security.") || strings.HasPrefix(x, "system.") {
			value := base64.StdEncoding.EncodeToString([]byte(i.Xattrs[x]))
			markers = append(markers, "xattr="+x+"=0s"+value)
		}
	}

	if i.Chattr != "" {
		markers = append(markers, "chattr="+i.Chattr)
	}
	if !isKernelFile(name) {
		markers = append(markers, "ctime="+i.Ctime.UTC().Format(time.RFC3339Nano))
	}
	return markers
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
