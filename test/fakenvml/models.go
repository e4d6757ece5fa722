// SPDX-License-Identifier: Apache-2.0

package fakenvml

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuadm/gpuadm/internal/gputable"
)

//go:embed models.txt
var modelsText string

// Model is a GPU model of the fake driver.
type Model struct {
	Key      string // as New takes it: H100-80
	Name     string // NVML's
	Compute  int    // compute slices; 0: it has no MIG
	Slices   int    // memory slices
	Resets   bool   // a mode change waits for a reset, and outlives the driver
	MemoryMB int
	Profiles []Profile

	device  string // PCI ids as NVML writes them: 0x233010DE
	board   string // the subsystem's
	arch    int    // NVML's number
	compute string // CUDA compute capability: 9.0

	fields map[string][]string
	ci     []computeProfile
}

// Profile is a GPU instance profile.
type Profile struct {
	ID       int // the driver's
	Kind     int // NVML's enum
	Name     string
	Slices   int // compute slices
	Max      int
	Said     int // what NVML answers for Max
	MemoryMB int
	Media    int   // 0 no media engines, 1 its share, 2 all of them
	Starts   []int // in memory slices, the driver's own choice first
	Size     int   // memory slices

	engines profileEngines
}

// profileEngines are a profile's engines, as models.txt has them.
type profileEngines struct {
	sms      string
	counts   []string // copy engines, decoders, encoders, JPEG, OFA
	graphics bool
}

type computeProfile struct {
	id      int
	slices  int
	offered uint // a bit for each GPU instance profile, by its index
	starts  []int
}

// Models are all models of models.txt.
func Models() ([]Model, error) {
	var models []Model
	for i, line := range strings.Split(modelsText, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if words[0] == "gpu" {
			m, err := modelOf(words[1], words[2])
			if err != nil {
				return nil, fmt.Errorf("cannot read models.txt: line %d: %w", i+1, err)
			}
			models = append(models, m)
			continue
		}

		if len(models) == 0 {
			return nil, fmt.Errorf("cannot read models.txt: line %d comes before a gpu", i+1)
		}
		last := &models[len(models)-1]
		if err := last.add(words[0], words[1:]); err != nil {
			return nil, fmt.Errorf("cannot read models.txt: line %d: %w", i+1, err)
		}
	}

	return models, nil
}

// modelOf is a model by its PCI device id, as a board of it was recorded.
func modelOf(key, id string) (Model, error) {
	g := gputable.Of(id)
	if g == nil || g.Recorded.Name == "" {
		return Model{}, fmt.Errorf("no board of %s is recorded in internal/gputable/gpus.tsv", id)
	}

	memory, err := strconv.Atoi(g.Recorded.MiB)
	if err != nil {
		return Model{}, err
	}
	arch := slices.Index(architectures, g.NVMLArch())
	if arch < 0 {
		return Model{}, fmt.Errorf("%s has the architecture %q, which the fake driver does not know", id, g.Arch)
	}

	_, board, _ := strings.Cut(g.Recorded.Subsystem, ":")
	return Model{
		Key:      key,
		Name:     g.Recorded.Name,
		MemoryMB: memory,
		device:   g.Device(),
		board:    "0x" + strings.ToUpper(board) + "10DE",
		arch:     arch,
		compute:  g.Recorded.Capability,
		fields:   map[string][]string{},
	}, nil
}

// architectures are those of NVML by their numbers, NVML_DEVICE_ARCH_TURING and later: nvml.h.
var architectures = []string{6: "turing", 7: "ampere", 8: "ada-lovelace", 9: "hopper", 10: "blackwell"}

// add reads a line about the model.
func (m *Model) add(key string, words []string) error {
	var err error
	number := func(i int) int {
		n, numberErr := strconv.Atoi(words[i])
		if numberErr != nil {
			err = numberErr
		}
		return n
	}

	switch key {
	case "mig":
		m.Compute = number(0)
		m.Slices = number(1)
		m.Resets = words[2] == "reset"

	case "gi":
		starts, size, _ := strings.Cut(words[14], ":")
		p := Profile{
			ID:       number(0),
			Kind:     number(1),
			Name:     words[2],
			Slices:   number(3),
			Max:      number(4),
			Said:     number(4),
			MemoryMB: number(6),
			Media:    number(7),
			engines: profileEngines{
				sms:      words[5],
				counts:   words[8:13],
				graphics: words[13] == "gfx",
			},
		}
		if p.Starts, err = numbers(starts); err == nil {
			p.Size, err = strconv.Atoi(size)
		}
		m.Profiles = append(m.Profiles, p)
	case "said":
		i, profileErr := m.profile(words[0])
		if profileErr != nil {
			return profileErr
		}
		m.Profiles[i].Said = number(1)

	case "ci":
		return m.addCompute(words)

	case "use":
		return m.useSeven(words[1] == "7+")

	default:
		m.fields[key] = words
	}

	return err
}

func (m *Model) profile(id string) (int, error) {
	for i, p := range m.Profiles {
		if strconv.Itoa(p.ID) == id {
			return i, nil
		}
	}

	return 0, fmt.Errorf("%s has no profile %s yet", m.Key, id)
}

// addCompute reads a compute instance profile: its id, its slices, the GPU instance profiles that
// offer it, and its places.
func (m *Model) addCompute(words []string) error {
	id, err := strconv.Atoi(words[0])
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(words[1])
	if err != nil {
		return err
	}
	c := computeProfile{id: id, slices: size}

	for _, profile := range strings.Split(words[2], ",") {
		i, err := m.profile(profile)
		if err != nil {
			return err
		}
		c.offered |= 1 << i
	}

	starts, _, _ := strings.Cut(words[3], ":")
	c.starts, err = numbers(starts)
	m.ci = append(m.ci, c)

	return err
}

// useSeven adds the compute instance profiles of the seven-slice GPUs. That places are aligned to
// their size is assumed: only the numbers of compute instances are published.
func (m *Model) useSeven(late bool) error {
	lines := []string{
		"0 1 19,20,15,14,9,5,0 0,1,2,3,4,5,6:1",
		"1 2 14,9,5,0 0,2,4:2",
		"2 3 9,0 0,4:3",
		"3 4 5,0 0:4",
		"4 7 0 0:7",
	}
	if late {
		lines = append(lines, "7 1 15 0:1", "8 7 0 0:7")
	}

	for _, line := range lines {
		if err := m.addCompute(strings.Fields(line)); err != nil {
			return err
		}
	}

	return nil
}

func numbers(list string) ([]int, error) {
	var all []int
	for _, word := range strings.Split(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}

	return all, nil
}

// table renders the models as the C table that state.h declares.
func table(models []Model) string {
	var b strings.Builder
	b.WriteString("#include \"state.h\"\nconst struct model MODELS[] = {\n")
	for _, m := range models {
		m.render(&b)
	}
	fmt.Fprintf(&b, "};\nconst u32 MODEL_COUNT = %d;\n", len(models))

	return b.String()
}

// classDisplay is the PCI class of a 3D controller.
const classDisplay = "0x030200"

// render writes a struct model: state.h has the order of its fields.
func (m *Model) render(b *strings.Builder) {
	has := strings.Join(m.fields["has"], " ")
	flag := func(word string) int { return strings.Count(has, word) }
	chip := m.fields["chip"]
	memory := m.fields["memory"]
	links := m.fields["links"]
	major, minor, _ := strings.Cut(m.compute, ".")

	fmt.Fprintf(b, "{%q, %q, %q, ", m.Key, m.Name, m.fields["vbios"][0])
	fmt.Fprintf(b, "%s, %s, %s, ", m.device, m.board, classDisplay)
	fmt.Fprintf(b, "%d, %s, %s, %s, %s, ", m.arch, major, minor, chip[0], chip[1])
	fmt.Fprintf(b, "%d, %s, %s, %s, ", m.MemoryMB, memory[0], links[0], links[1])
	fmt.Fprintf(b, "%d, %d, %d, ", flag("ecc"), flag("remap"), flag("fabric"))
	fmt.Fprintf(b, "%d, %d, %d, ", m.Compute, m.Slices, bit(m.Resets))
	fmt.Fprintf(b, "%d, %d,\n{", len(m.Profiles), len(m.ci))

	for _, p := range m.Profiles {
		e := p.engines
		fmt.Fprintf(b, "{%d, %d, %d, %d, %d, ", p.ID, p.Kind, p.Slices, p.Max, p.Said)
		fmt.Fprintf(b, "%s, %d, %d, ", e.sms, p.MemoryMB, p.Media)
		fmt.Fprintf(b, "%s, %d, ", strings.Join(e.counts, ", "), bit(e.graphics))
		fmt.Fprintf(b, "%q, %d, %d, {%s}},\n", p.Name, p.Size, len(p.Starts), list(p.Starts))
	}

	b.WriteString("}, {")
	for _, c := range m.ci {
		fmt.Fprintf(b, "{%d, %d, %d, %d, {%s}},\n", c.id, c.slices, c.offered, len(c.starts), list(c.starts))
	}
	b.WriteString("}},\n")
}

func bit(set bool) int {
	if set {
		return 1
	}
	return 0
}

// list renders numbers for C, where an empty list is {0}.
func list(numbers []int) string {
	if len(numbers) == 0 {
		return "0"
	}

	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = strconv.Itoa(n)
	}

	return strings.Join(words, ", ")
}
