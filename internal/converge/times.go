// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"fmt"
	"strings"
)

// Took is how long the changes of a stage took in a run.
type Took struct {
	Stage  string `json:"stage"`
	Millis int64  `json:"ms"`
}

// Times say where the time of a run went, in the order of its stages.
type Times []Took

// String is "driver 95.2 s, runtime 1.3 s".
func (t Times) String() string {
	var all []string
	for _, one := range t {
		all = append(all, fmt.Sprintf("%s %.1f s", one.Stage, float64(one.Millis)/1000))
	}
	return strings.Join(all, ", ")
}
