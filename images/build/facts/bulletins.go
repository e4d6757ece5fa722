// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// bulletin is a row of bulletins.tsv: what a security bulletin says of the drivers of one branch.
type bulletin struct {
	Branch string
	Fixed  string // the first driver of the branch without the vulnerabilities
	Number string
	Month  string
	CVEs   int
}

// advisory is what is read of a bulletin in CSAF 2.0:
// https://docs.oasis-open.org/csaf/csaf/v2.0/csaf-v2.0.html.
type advisory struct {
	Document struct {
		Tracking struct {
			ID       string `json:"id"`
			Released string `json:"initial_release_date"`
		} `json:"tracking"`
	} `json:"document"`
	Tree            branch `json:"product_tree"`
	Vulnerabilities []struct {
		Status struct {
			Fixed []string `json:"fixed"`
		} `json:"product_status"`
	} `json:"vulnerabilities"`
}

// branch is a node of the tree of products.
type branch struct {
	Category string   `json:"category"`
	Name     string   `json:"name"`
	Branches []branch `json:"branches"`
	Product  struct {
		Name string `json:"name"`
		ID   string `json:"product_id"`
	} `json:"product"`
}

var (
	linuxBranch = regexp.MustCompile(`^Linux ?\(R(\d{3})\)$`)
	plainDriver = regexp.MustCompile(`^\d{3}\.\d+(?:\.\d+)?$`)
	bulletinIn  = regexp.MustCompile(`^\d{4}/(\d+)/(\d+)\.json$`)
)

// bulletins reads all bulletins about drivers for Linux.
func bulletins(r records) (rows []bulletin, err error) {
	files, err := r.files("HEAD", ".")
	if err != nil {
		return nil, err
	}

	for _, name := range files {
		m := bulletinIn.FindStringSubmatch(name)
		if m == nil || m[1] != m[2] {
			continue
		}
		text, err := r.read("HEAD", name)
		if err != nil {
			return nil, err
		}
		var a advisory
		if err := json.Unmarshal(text, &a); err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", path.Base(name), err)
		}
		rows = append(rows, a.rows()...)
	}

	slices.SortFunc(rows, func(a, b bulletin) int {
		return cmp.Or(
			compare(a.Branch, b.Branch),
			compare(a.Fixed, b.Fixed),
			strings.Compare(a.Number, b.Number),
		)
	})
	return rows, nil
}

// rows are what an advisory says of each branch: the first driver that fixes all of its
// vulnerabilities. Where a branch has a release for desktops and one for data centres, either has
// the fix: they are of the same sources, and Debian's changelog says the same of both.
func (a advisory) rows() (rows []bulletin) {
	for linux, products := range a.Tree.linux() {
		if compare(linux, oldest) < 0 {
			continue
		}
		row := bulletin{
			Branch: linux,
			Number: a.Document.Tracking.ID,
			Month:  a.Document.Tracking.Released[:min(7, len(a.Document.Tracking.Released))],
		}
		for _, v := range a.Vulnerabilities {
			fixed := ""
			for _, id := range v.Status.Fixed {
				if products[id] != "" {
					fixed = earliest(fixed, products[id])
				}
			}

			if fixed != "" {
				row.CVEs++
				row.Fixed = later(row.Fixed, fixed)
			}
		}

		if row.Fixed != "" {
			rows = append(rows, row)
		}
	}
	return rows
}

// earliest is the older of two drivers; "" is none.
func earliest(a, b string) string {
	if a == "" {
		return b
	}
	return earlier(a, b)
}

// linux returns the versions of the drivers for Linux, by branch and product id. Other products are
// vGPU's, which have other versions, and Windows'.
func (b branch) linux() map[string]map[string]string {
	all := map[string]map[string]string{}
	m := linuxBranch.FindStringSubmatch(b.Name)
	for _, child := range b.Branches {
		maps.Copy(all, child.linux())
		if m == nil || !plainDriver.MatchString(child.Product.Name) || child.Category != "product_version" {
			continue
		}
		if all[m[1]] == nil {
			all[m[1]] = map[string]string{}
		}
		all[m[1]][child.Product.ID] = child.Product.Name
	}

	return all
}

// bulletinTable writes the rows as text.
func bulletinTable(rows []bulletin) string {
	var b strings.Builder
	b.WriteString(`# SPDX-License-Identifier: Apache-2.0
#
# Made by make facts: do not edit. NVIDIA's security bulletins about drivers for Linux: of each branch the first
# driver without their vulnerabilities. Source: ` + repositories["product-security"] + `, in CSAF 2.0.
#
# branch	fixed	bulletin	month	vulnerabilities
`)
	for _, r := range rows {
		fmt.Fprintf(&b, "%s\t%s\t%s\t%s\t%d\n", r.Branch, r.Fixed, r.Number, r.Month, r.CVEs)
	}
	return b.String()
}

// makeBulletins makes the table of security bulletins.
func makeBulletins(folder string) error {
	r, err := open(folder, "product-security")
	if err != nil {
		return err
	}
	rows, err := bulletins(r)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return fmt.Errorf("cannot use %s: no bulletin about drivers for Linux was found in it", r)
	}
	return write("drivers/catalog/bulletins.tsv", bulletinTable(rows))
}
