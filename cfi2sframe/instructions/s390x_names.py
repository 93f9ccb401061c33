# SPDX-License-Identifier: Apache-2.0
"""The mnemonics of s390x that change other things than their first operand (z/Architecture Principles of Operation)."""

from __future__ import annotations

import re
from typing import Final

from cfi2sframe.instructions.effects import words

#: Conditions as mnemonics spell them.
CONDITION: Final = "nlh|nhe|nle|ne|nz|nh|nl|nm|np|no|lh|he|le|e|z|h|p|l|m|o"


#: What leaves for another mode, space or program, loads control registers, or executes an instruction at an address in
#: a register.
UNKNOWN: Final = words(
    "ex ereg eregg sam24 sam31 bassm bsm bsa bsg bakr pc pr pt pti trap2 trap4 lpsw lpswe lpswey rp sie sac sacf sigp"
    " diag ssch rsch tabort lctl lctlg lcctl lpctl lsctl lasp tbeginc bi"
)
#: Nothing, the condition code, or storage that is not addressed through a register.
READS_ONLY: Final = words(
    "pfd pfdrl ppa bpp bprp stgrl strl sthrl sfpc srnm srnmb srnmt lfpc lfas sar cpya lam lamy niai etnd"
    " c cy cr cg cgr cgf cgh ch chy chf chi cghi cfi cgfi chsi cghsi chhsi cih chhr chlr cl cly clr clg clgr clfi clgfi"
    " clgf clhf clih clhhr clhlr clfhsi clghsi clhhsi cli cliy clc clm clmy clmh crl cgrl cgfrl chrl cghrl clrl clgrl"
    " clgfrl clhrl clghrl cgfr clgfr tm tmy tmll tmlh tmhl tmhh tml tmh spm tend cp tp tprot"
    " cer cdr cxr ce cd cebr cdbr cxbr ceb cdb kebr kdbr kxbr keb kdb tceb tcdb tcxb cdtr cxtr kdtr kxtr cedtr cextr"
    " tdcet tdcdt tdcxt tdget tdgdt tdgxt"
    " wfc wfcdb wfcsb wfcxb wfk wfkdb wfksb wfkxb vec vecb vech vecf vecg vecl veclb veclh veclf veclg vtm vtp vcp"
)
#: Comparisons that trap.
READS_ONLY_PATTERN: Final = re.compile(rf"c(?:l?g?[ri]|lf?|lfi|lg?)t({CONDITION})?")
#: Pairs of registers, which begin with the first operand.
PAIR: Final = words(
    "m mr ml mlr mlg mlgr mg mgrk mfy d dr dl dlr dlg dlgr dsg dsgr dsgf dsgfr srda srdl slda sldl flogr lpq lpd lpdg"
    " cds cdsy cdsg my myr may mayr"
)
#: The registers that are operands.
NAMED: Final = words("clst srst srstu mvst")
#: The pairs that begin with the registers that are operands, and r0 and r1.
NAMED_PAIRS: Final = words(
    "mvcl clcl mvcle clcle mvclu clclu cuse cksm tre km kmc kma kmctr kmf kmo kimd klmd kmac ppno prno"
    " cu12 cu14 cu21 cu24 cu41 cu42 cuutf cutfu trte trtre troo trot trto trtt"
)
#: Registers that the text does not name, besides those that it names.
IMPLICIT: Final = {
    **dict.fromkeys(("trt", "trtr"), (1, 2)),
    "cfc": (1, 2, 3),
    "upt": (0, 1, 2, 3, 4, 5),
    "edmk": (1,),
    "ectg": (0, 1, 3),
    "stfle": (0,),
}
#: Loads of a whole register, and the bytes loaded.
LOADS: Final = {
    **dict.fromkeys(("lg", "ld", "ldy", "ltg", "lgat"), 8),
    **dict.fromkeys(("lgf", "llgf"), 4),
    **dict.fromkeys(("lgh", "llgh"), 2),
    **dict.fromkeys(("lgb", "llgc"), 1),
}
#: Stores of a register: the bytes stored, and the number of the operand in memory.
STORES: Final = {
    **dict.fromkeys(words("stc stcy stch vsteb"), (1, 1)),
    **dict.fromkeys(words("sth sthy sthh strvh vsteh vstebrh"), (2, 1)),
    **dict.fromkeys(words("st sty stfh strv ste stey vstef vstebrf"), (4, 1)),
    **dict.fromkeys(words("strvg vsteg vstebrg cvd cvdy ntstg"), (8, 1)),
    **dict.fromkeys(words("vst stpq cvdg vstrl vstbr vster czdt czxt cpdt cpxt"), (16, 1)),
    **dict.fromkeys(words("vstbrh vstbrf vstbrg vstbrq vsterh vsterf vsterg"), (16, 1)),
    "vupkz": (32, 1),
    **dict.fromkeys(("stcm", "stcmy", "stcmh"), (4, 2)),
    **dict.fromkeys(("vstl", "vstrlr"), (16, 2)),
}
#: Conditional stores.
STORES_PATTERN: Final = re.compile(rf"stoc(?:g|fh)?({CONDITION})?")
#: Stores of many registers, and the bytes of each.
STORES_MANY: Final = {
    **dict.fromkeys(("stm", "stmy", "stmh", "stam", "stamy", "stctl"), 4),
    "stctg": 8,
    "vstm": 16,
}
#: What changes its first operand, in storage, whose length the text does not have.
FIRST_SIZES: Final = {
    **dict.fromkeys(("mvi", "mviy", "ni", "niy", "oi", "oiy", "xi", "xiy", "ts"), 1),
    "mvhhi": 2,
    **dict.fromkeys(("mvhi", "stfpc", "asi", "alsi"), 4),
    **dict.fromkeys(("mvghi", "agsi", "algsi", "stck", "stckf"), 8),
    **dict.fromkeys(("pka", "pku", "stcke"), 16),
    "stfle": 256,
    "tbegin": 256,
    # The text has the length.
    **dict.fromkeys(words("mvc mvn mvz mvcin mvo pack unpk tr nc oc xc zap ap sp srp ed edmk unpka unpku mp dp"), 1),
}
#: What may change a register, or a pair, and its third operand, in storage.
SWAPS: Final = words("cs csy csg cds cdsy cdsg laa laal lan lao lax laag laalg lang laog laxg")
#: What `exrl` may execute with another second byte: it is a length or a number, and names no register.
EXECUTED: Final = words(
    "mvc mvn mvz mvcin mvo pack unpk tr nc oc xc zap ap sp srp ed unpka unpku mp dp clc tm cli mvi ni oi xi trt trtr"
    " edmk cp"
)
