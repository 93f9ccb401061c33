# SPDX-License-Identifier: Apache-2.0
"""Sections as this package makes them, and without padding, as those of other producers."""

from cfi2sframe import convert
from cfi2sframe.api import decode_conversion
from cfi2sframe.conversion.convert import Conversion, convert_image
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.read import DecodedSection
from cfi2sframe.sframe.write import write_section


def decode_made(image: ElfImage, options: Options = Options()) -> DecodedSection:
    """Convert a file, and decode the section; an object's functions start at addresses of the image's layout."""
    return decode_conversion(convert_image(image, options))


def convert_unpadded(image: ElfImage, options: Options) -> Conversion:
    """Convert a linked file with sharing only, because at level 2 padding joins functions; end each at its padding."""
    conversion = convert(image, **options._replace(level=1)._asdict())
    padding, section = conversion.padding, conversion.section
    start_of_padding = {end: start for start, end in padding}
    ends = [start + size for start, size in zip(section.starts, section.sizes, strict=True)]
    sizes = [start_of_padding.get(end, end) - start for start, end in zip(section.starts, ends, strict=True)]
    section = section._replace(sizes=tuple(sizes))
    data = write_section(section, image.arch, conversion.rows, conversion.section_vaddr)
    return conversion._replace(section=section, data=data)
