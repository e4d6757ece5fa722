// SPDX-FileCopyrightText: The gpuadm authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// driverRecord is what the driver answered.
type driverRecord struct {
	driver Driver
	none   *NoDriver
}

// Driver is View's. Serial numbers and unique names are noted as others, the same for the same.
func (r *Recorder) Driver(ctx context.Context) (Driver, error) {
	found, err := r.view.Driver(ctx)
	none := (*NoDriver)(nil)
	if err == nil || errors.As(err, &none) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.driverRecord = &driverRecord{found, none}
	}
	return found, err
}

// settings writes [driver] and a [[gpu]] for each, as simhost reads them.
func (d *driverRecord) settings(b *bytes.Buffer) {
	if d.none != nil {
		fmt.Fprintf(b, "\n[driver]\nwhy = %s\ntry = %s\ncode = %s\n", quote(d.none.Why), quote(d.none.Try), quote(d.none.Code))
		return
	}
	fmt.Fprintf(b, "\n[driver]\nversion = %s\nnvml = %s\ncuda = %s\n", quote(d.driver.Version), quote(d.driver.NVML), quote(d.driver.CUDA))
	for i, g := range d.driver.GPUs {
		fmt.Fprint(b, "\n[[gpu]]\n")
		for _, line := range tomlLines(anonymous(g, i)) {
			fmt.Fprintln(b, line)
		}
	}
}

// anonymous is a GPU without what tells this machine from others.
func anonymous(g GPU, nth int) GPU {
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

// tomlLines writes the fields of a struct that are not zero, one a line.
func tomlLines(of any) []string {
	data, _ := json.Marshal(of)
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // a float would lose bytes of memory
	_ = d.Decode(&fields)
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if value := tomlValue(fields[name]); value != "" {
			lines = append(lines, strings.ToLower(name)+" = "+value)
		}
	}
	return lines
}

// tomlValue writes a value of JSON inline; "" for what TOML has no word for, or what is as if it were not there.
func tomlValue(of any) string {
	switch v := of.(type) {
	case string:
		if v == "" {
			return ""
		}
		return quote(v)
	case bool:
		if !v {
			return ""
		}
		return "true"
	case json.Number:
		if v == "0" {
			return ""
		}
		return v.String()
	case []any:
		var all []string
		for _, one := range v {
			if number, ok := one.(json.Number); ok {
				all = append(all, number.String())
			} else {
				all = append(all, tomlValue(one))
			}
		}
		if len(all) == 0 {
			return ""
		}
		if table, ok := v[0].(map[string]any); ok && len(table) > 2 { // a table a line, spans in one
			return "[\n  " + strings.Join(all, ",\n  ") + ",\n]"
		}
		return "[" + strings.Join(all, ", ") + "]"
	case map[string]any:
		var all []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if value := tomlValue(v[name]); value != "" {
				all = append(all, strings.ToLower(name)+" = "+strings.ReplaceAll(value, "\n", ""))
			}
		}
		if len(all) == 0 {
			return "{}"
		}
		return "{ " + strings.Join(all, ", ") + " }"
	}
	return ""
}

// CUDA is View's; the answers are not noted.
func (r *Recorder) CUDA(ctx context.Context, of string, shown ...[]string) ([]CUDA, error) {
	return r.view.CUDA(ctx, of, shown...)
}
