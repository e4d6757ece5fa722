// SPDX-License-Identifier: Apache-2.0

package fakenvml

// State is what fakenvml dump prints.
type State struct {
	Driver    string         `json:"driver"`
	NVML      string         `json:"nvml"`
	CUDA      int            `json:"cuda"` // 13000
	Init      string         `json:"init"`
	Boots     int            `json:"boots"`
	LatencyMS int            `json:"latency_ms"`
	Mutations int            `json:"mutations"` // calls that change something, failed ones too, and resets
	Attaches  int            `json:"attaches"`  // of GPUs that no process held, to a session
	GPUs      []GPU          `json:"gpus"`
	Clients   []Client       `json:"clients"`
	Rules     []Rule         `json:"rules"`
	Counts    map[string]int `json:"counts"` // calls by name
	Log       []Mutation     `json:"log"`    // the last 1024 changes
}

// GPU is one GPU.
type GPU struct {
	Model     string            `json:"model"`
	Index     int               `json:"index"`
	Address   string            `json:"address"` // as sysfs writes it
	UUID      string            `json:"uuid"`
	Serial    string            `json:"serial"`
	MIG       bool              `json:"mig"` // it can be partitioned
	Mode      int               `json:"mode"`
	Pending   int               `json:"pending"`
	Settings  map[string]uint64 `json:"settings"`
	Instances []Instance        `json:"instances"` // by id
}

// Instance is a GPU instance; Start and Size are memory slices.
type Instance struct {
	ID      int       `json:"id"`
	Profile int       `json:"profile"` // the driver's id
	Name    string    `json:"name"`
	Start   int       `json:"start"`
	Size    int       `json:"size"`
	Compute []Compute `json:"compute"`
}

// Compute is a compute instance; Start and Size are compute slices.
type Compute struct {
	ID      int    `json:"id"`
	Profile int    `json:"profile"`
	Start   int    `json:"start"`
	Size    int    `json:"size"`
	UUID    string `json:"uuid"`
}

// Client is a process that uses a GPU; -1 is not an instance.
type Client struct {
	PID int `json:"pid"`
	GPU int `json:"gpu"`
	GI  int `json:"gi"`
	CI  int `json:"ci"`
}

// Rule is a Fail or a Kill and how many calls it has seen.
type Rule struct {
	Call string `json:"call"`
	Nth  int    `json:"nth"`
	Seen int    `json:"seen"`
}

// Mutation is one call that changes something; -1 is none.
type Mutation struct {
	PID     int    `json:"pid"`
	Call    string `json:"call"`
	GPU     int    `json:"gpu"`
	GI      int    `json:"gi"`
	CI      int    `json:"ci"`
	Profile int    `json:"profile"`
	Start   int    `json:"start"` // of nvmlDeviceSetMigMode: the mode
	Size    int    `json:"size"`
	Code    string `json:"code"` // SUCCESS, IN_USE
}

// Count is how many of the log's changes of that name succeeded on a GPU (-1: on any).
func (s State) Count(call string, gpu int) int {
	n := 0
	for _, m := range s.Log {
		if m.Call == call && m.Code == "SUCCESS" && (gpu < 0 || m.GPU == gpu) {
			n++
		}
	}

	return n
}
